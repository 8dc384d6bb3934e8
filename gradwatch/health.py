"""What a run comes to: one judgement, for the report and for the logger's table of runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from gradwatch.findings import Finding, Severity
from gradwatch.readings import StepRecord

State = Literal["healthy", "warning", "error", "empty"]
GRAVITY: dict[Severity, int] = {"info": 0, "warning": 1, "error": 2}


@dataclass(kw_only=True)
class Signs:
    """What a run showed of its health, findings and records taken together.

    Attributes:
        records: Number of recorded steps.
        first_bad_step: First step that was told or recorded as non-finite; None without one.
        skips: Whether a step was skipped, as a gradient scaler does.
    """

    records: int = 0
    first_bad_step: int | None = None
    skips: bool = False

    def record(self, record: StepRecord) -> None:
        """Take in a recorded step."""
        self.records += 1
        self.skips = self.skips or record.scalars.get("grad/skipped", 0) > 0
        if record.flow is not None and np.isinf(record.flow.grad_norm).any():
            self._mark_bad(record.step)

    def finding(self, finding: Finding) -> None:
        """Take in a finding."""
        if finding.rule == "non_finite":
            self._mark_bad(finding.step)

    def _mark_bad(self, step: int) -> None:
        known = self.first_bad_step
        self.first_bad_step = step if known is None else min(step, known)


class Verdict(NamedTuple):
    """What a run comes to.

    Attributes:
        state: ``"healthy"``, ``"warning"``, ``"error"``, or ``"empty"`` where nothing was
            recorded.
        headline: Two or three words.
        sentence: What is wrong, or that nothing is.
        worst_layer: Layer of the gravest finding; empty where none is a warning or worse.
    """

    state: State
    headline: str
    sentence: str
    worst_layer: str


def gravity(finding: Finding) -> tuple[int, int]:
    """Give what findings are sorted by: the gravest first, the earliest among equals.

    Args:
        finding: A finding; one of a severity that is not known here comes last.
    """
    return -GRAVITY.get(finding.severity, -1), finding.step


def worst_of(findings: Iterable[Finding]) -> Finding | None:
    """Give the gravest finding, the earliest among equals; None where all are only worth knowing.

    Args:
        findings: Findings of the run.
    """
    told = (finding for finding in findings if GRAVITY.get(finding.severity, 0) > 0)
    return min(told, key=gravity, default=None)


def judge(worst: Finding | None, signs: Signs) -> Verdict:
    """Say what a run comes to.

    Args:
        worst: Its gravest finding, as `worst_of` gives it.
        signs: What else it showed.

    Examples:
        >>> judge(None, Signs(records=8)).headline
        'Healthy'
        >>> judge(None, Signs(records=8, first_bad_step=3)).headline
        'Needs a look'
    """
    if worst is not None:
        return _faulty(worst)
    if signs.records == 0:
        return Verdict("empty", "Nothing recorded", "No step has been recorded yet.", "")
    if signs.first_bad_step is not None:
        return _silent(signs.first_bad_step, skipped=signs.skips)
    return Verdict("healthy", "Healthy", "Nothing was found in what was recorded.", "")


def _silent(step: int, *, skipped: bool) -> Verdict:
    """Word non-finite gradients of which no rule spoke."""
    if skipped:
        sentence = (
            f"Nothing was found. Non-finite gradients (the first at step {step:,}) were skipped, "
            "as a gradient scaler does."
        )
        return Verdict("healthy", "Healthy", sentence, "")
    sentence = f"A gradient was non-finite at step {step:,}, and no rule that was on says why."
    return Verdict("warning", "Needs a look", sentence, "")


def _faulty(worst: Finding) -> Verdict:
    sentence = f"{say_rule(worst.rule)} at step {worst.step:,} in {worst.layer}: {worst.summary}."
    state: State = "error" if worst.severity == "error" else "warning"
    headline = "Something is wrong" if state == "error" else "Needs a look"
    return Verdict(state, headline, sentence[0].upper() + sentence[1:], worst.layer)


def say_rule(rule: str) -> str:
    """Write the name of a rule as words.

    Args:
        rule: As a finding bears it.

    Examples:
        >>> say_rule("non_finite"), say_rule("never_cleared")
        ('non-finite', 'never cleared')
    """
    return rule.replace("non_", "non-").replace("_", " ")
