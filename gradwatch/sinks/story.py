"""What a run comes to: the few values a table of runs shows."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gradwatch.findings import Finding
from gradwatch.health import Signs, gravity, judge, worst_of
from gradwatch.printable import printable
from gradwatch.readings import StepRecord

# A checkpoint carries them; a run in bad health repeats itself.
MOST_KEPT = 200


class Story:
    """Keep the findings of a run and the signs beside them, and say what they come to.

    Attributes:
        findings: The first 200, in order; beyond them only what is worse than all before.

    Examples:
        >>> Story().summary()
        {'flow/finding_count': 0, 'flow/verdict': 'nothing recorded'}
    """

    def __init__(self) -> None:
        """Start with nothing recorded."""
        self.findings: list[Finding] = []
        self._count = 0
        self._signs = Signs()

    def record(self, record: StepRecord) -> None:
        """Take in a recorded step."""
        self._signs.record(record)

    def add(self, finding: Finding) -> None:
        """Take in a finding."""
        self._count += finding.severity != "info"
        self._signs.finding(finding)
        worst = worst_of(self.findings)
        worse = worst is None or gravity(finding) < gravity(worst)
        if len(self.findings) < MOST_KEPT or worse:
            self.findings.append(finding)

    def summary(self) -> dict[str, Any]:
        """Give the values under their keys; keys of what did not happen are left out."""
        worst = worst_of(self.findings)
        verdict = judge(worst, self._signs)
        sound = verdict.state in {"healthy", "empty"}
        told = worst.lines()[0] if worst else verdict.sentence
        summary: dict[str, Any] = {
            "flow/finding_count": self._count,
            "flow/verdict": verdict.headline.lower() if sound else told,
        }
        if worst is not None:
            summary["flow/worst_layer"] = printable(worst.layer)
        if self._signs.first_bad_step is not None:
            summary["grad/first_non_finite_step"] = self._signs.first_bad_step
        return summary

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed run must know to tell the whole story; primitives only."""
        findings = [asdict(finding) for finding in self.findings]
        return {"findings": findings, "count": self._count, "signs": asdict(self._signs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Args:
            state: The story of the earlier run.
        """
        self.findings = [Finding(**finding) for finding in state["findings"]]
        self._count, self._signs = int(state["count"]), Signs(**state["signs"])
