"""The findings of a run joined to rows, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradwatch import health
from gradwatch.findings import Finding
from gradwatch.health import Verdict, gravity
from gradwatch.report.story import Story


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
        Group(min(same, key=gravity), len(same), max(each.step for each in same))
        for same in kinds.values()
    ]
    return sorted(groups, key=lambda one: gravity(one.shown))


def judge(story: Story) -> Verdict:
    """Say what the run comes to, and how many findings beside the worst stand below.

    Args:
        story: The run.
    """
    verdict = health.judge(health.worst_of(story.findings), story.signs)
    rest = sum(one.shown.severity != "info" for one in group(story.findings)) - 1
    more = f" ({rest:,} more finding{'s' * (rest > 1)} below)" if rest > 0 else ""
    return verdict._replace(sentence=f"{verdict.sentence}{more}")
