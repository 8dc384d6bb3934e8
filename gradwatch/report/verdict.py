"""What a run comes to, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from gradwatch.findings import Finding
from gradwatch.report.story import Story
from gradwatch.sinks.story import GRAVITY

State = Literal["healthy", "warning", "error", "empty"]


class Group(NamedTuple):
    """The findings of one rule in one layer.

    Attributes:
        shown: The gravest of them, the earliest among equals.
        times: How many there are.
        last_step: Step of the last one.
    """

    shown: Finding
    times: int
    last_step: int


class Verdict(NamedTuple):
    """The head of the report.

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


def group(findings: Sequence[Finding]) -> list[Group]:
    """Join what repeats itself; the gravest come first, then in the order of steps.

    Args:
        findings: Findings, in order.

    Examples:
        >>> told = Finding(rule="dead", layer="net.0", severity="warning", step=3, summary="")
        >>> group([told, told])[0].times
        2
    """
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.rule, finding.layer), []).append(finding)
    groups = [
        Group(min(same, key=_gravity), len(same), max(each.step for each in same))
        for same in kinds.values()
    ]
    return sorted(groups, key=lambda one: _gravity(one.shown))


def judge(story: Story) -> Verdict:
    """Say what the run comes to.

    Args:
        story: The run.
    """
    told = [one for one in group(story.findings) if one.shown.severity != "info"]
    if told:
        return _faulty(told)
    if story.records == 0:
        return Verdict("empty", "Nothing recorded", "No step has been recorded yet.", "")
    if story.first_bad_step is not None:
        return _silent(story, story.first_bad_step)
    return Verdict("healthy", "Healthy", "Nothing was found in what was recorded.", "")


def _silent(story: Story, step: int) -> Verdict:
    """Word non-finite gradients of which no rule spoke."""
    skipped = story.history.scalar("grad/skipped")
    if skipped is not None and np.nanmax(skipped.high) > 0:
        sentence = (
            f"Nothing was found. Non-finite gradients (the first at step {step:,}) were skipped, "
            "as a gradient scaler does."
        )
        return Verdict("healthy", "Healthy", sentence, "")
    sentence = f"A gradient was non-finite at step {step:,}, and no rule that was on says why."
    return Verdict("warning", "Needs a look", sentence, "")


def _faulty(told: Sequence[Group]) -> Verdict:
    worst, rest = told[0].shown, len(told) - 1
    more = f" ({rest} more finding{'s' * (rest > 1)} below)" if rest else ""
    where = f"at step {worst.step:,} in {worst.layer}"
    sentence = f"{say_rule(worst.rule)} {where}: {worst.summary}.{more}"
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


def _gravity(finding: Finding) -> tuple[int, int]:
    return -GRAVITY.get(finding.severity, -1), finding.step
