"""What the findings of a run come to: the few values a table of runs shows."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gradwatch.findings import Finding, Severity

GRAVITY: dict[Severity, int] = {"info": 0, "warning": 1, "error": 2}
# A checkpoint carries them; a run in bad health repeats itself.
MOST_KEPT = 200


class Story:
    """Keep the findings of a run, and say what they come to.

    Attributes:
        findings: The first 200, in order; beyond them only what is worse than all before.

    Examples:
        >>> Story().summary()
        {'flow/finding_count': 0, 'flow/verdict': 'healthy'}
    """

    def __init__(self) -> None:
        """Start healthy."""
        self.findings: list[Finding] = []
        self._count = 0
        self._first_bad_step: int | None = None

    def add(self, finding: Finding) -> None:
        """Take in a finding."""
        self._count += finding.severity != "info"
        if finding.rule == "non_finite" and self._first_bad_step is None:
            self._first_bad_step = finding.step
        worst = self.worst
        worse = worst is None or GRAVITY[finding.severity] > GRAVITY[worst.severity]
        if len(self.findings) < MOST_KEPT or worse:
            self.findings.append(finding)

    @property
    def worst(self) -> Finding | None:
        """The first of the gravest findings; None where all is well."""
        told = [finding for finding in self.findings if finding.severity != "info"]
        return max(told, key=lambda finding: GRAVITY[finding.severity], default=None)

    def summary(self) -> dict[str, Any]:
        """Give the values under their keys; keys of what did not happen are left out."""
        worst = self.worst
        summary: dict[str, Any] = {
            "flow/finding_count": self._count,
            "flow/verdict": "healthy" if worst is None else worst.lines()[0],
        }
        if worst is not None:
            summary["flow/worst_layer"] = worst.layer
        if self._first_bad_step is not None:
            summary["grad/first_non_finite_step"] = self._first_bad_step
        return summary

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed run must know to tell the whole story; primitives only."""
        findings = [asdict(finding) for finding in self.findings]
        return {"findings": findings, "count": self._count, "first_bad": self._first_bad_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Args:
            state: The story of the earlier run.
        """
        self.findings = [Finding(**finding) for finding in state["findings"]]
        self._count, self._first_bad_step = int(state["count"]), state["first_bad"]
