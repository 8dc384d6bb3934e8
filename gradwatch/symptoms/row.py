"""One row of the table: symptom, likely cause, how it was checked, remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gradwatch.findings import ROOT, Evidence, Finding, Severity
from gradwatch.symptoms.signs import Signs


class Seen(NamedTuple):
    """What a check saw.

    Attributes:
        evidence: The numbers.
        layer: Where; ``<root>`` for the run as a whole.
    """

    evidence: Mapping[str, Evidence]
    layer: str = ROOT


@dataclass(frozen=True, kw_only=True)
class Row:
    """A symptom.

    Attributes:
        name: Name of the rule; the documentation's anchor.
        symptom: What is seen.
        cause: What is likely behind it.
        checked: How it was checked.
        remedy: What to do.
        severity: How bad it is.
        check: Looks for it; None where it is not there or nothing is known.
    """

    name: str
    symptom: str
    cause: str
    checked: str
    remedy: str
    check: Callable[[Signs], Seen | None]
    severity: Severity = "info"

    def judge(self, signs: Signs, step: int) -> Finding | None:
        """Word the symptom if it is there.

        Args:
            signs: What is known.
            step: Optimizer step.
        """
        seen = self.check(signs)
        if seen is None:
            return None
        return Finding(
            rule=self.name,
            layer=seen.layer,
            severity=self.severity,
            step=step,
            summary=self.symptom,
            evidence={**seen.evidence, "checked": self.checked},
            cause=self.cause,
            remedy=self.remedy,
        )
