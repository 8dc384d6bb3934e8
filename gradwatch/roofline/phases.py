"""From the borders of a step to the time of its phases, and intervals of time."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gradwatch.parts import Border

DATA_WAIT = "data_wait"
HOST_TO_DEVICE = "host_to_device"
FORWARD = "forward"
BACKWARD = "backward"
COMMUNICATION = "communication"
HIDDEN = "communication_hidden"
OPTIMIZER = "optimizer"
OTHER = "other"

_UP_TO: Mapping[Border, str] = {
    "before_transfer": DATA_WAIT,
    "after_transfer": HOST_TO_DEVICE,
    "before_forward": DATA_WAIT,
    "after_forward": FORWARD,
    "before_backward": FORWARD,
    "after_backward": BACKWARD,
    "after_step": OPTIMIZER,
}
_BETWEEN: Mapping[tuple[Border, Border], str] = {
    ("after_transfer", "before_forward"): OTHER,
    # Several optimizers in one training step: what is left of it after the last update.
    ("after_step", "after_forward"): OTHER,
    ("after_backward", "after_forward"): OTHER,
}

Interval = tuple[float, float]


class Crossing(NamedTuple):
    """A border of a phase and when it was crossed.

    Attributes:
        seconds: On any clock.
        border: Which one.
    """

    seconds: float
    border: Border


class Stretch(NamedTuple):
    """A stretch of time that belongs to one phase."""

    phase: str
    start: float
    end: float


def stretches(crossings: Sequence[Crossing]) -> Iterator[Stretch]:
    """Name the time between each two crossings.

    Args:
        crossings: In the order of time.

    Yields:
        One stretch less than there are crossings.

    Examples:
        >>> told = [Crossing(0, "before_forward"), Crossing(2, "before_backward")]
        >>> [stretch.phase for stretch in stretches(told)]
        ['forward']
    """
    for before, now in itertools.pairwise(crossings):
        phase = _BETWEEN.get((before.border, now.border), _UP_TO[now.border])
        yield Stretch(phase, before.seconds, now.seconds)


def sum_phases(crossings: Sequence[Crossing]) -> dict[str, float]:
    """Sum the time of each phase.

    Args:
        crossings: Of one step, in the order of time.

    Returns:
        Phase → seconds.
    """
    sums: dict[str, float] = {}
    for phase, start, end in stretches(crossings):
        sums[phase] = sums.get(phase, 0.0) + end - start
    return sums


def split_steps(crossings: Sequence[Crossing]) -> list[list[Crossing]]:
    """Cut at each forward that begins after an update.

    Args:
        crossings: Of several steps, in the order of time.

    Returns:
        The steps that are complete, each with the border that begins the next.
    """
    steps: list[list[Crossing]] = []
    own: list[Crossing] = []
    for crossing in crossings:
        own.append(crossing)
        updated = any(each.border == "after_step" for each in own)
        if crossing.border == "before_forward" and updated:
            steps.append(own)
            own = [crossing]
    return steps


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Join intervals that touch or overlap.

    Args:
        intervals: In any order.

    Examples:
        >>> union([(3, 4), (0, 1), (0.5, 2)])
        [(0, 2), (3, 4)]
    """
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def total(intervals: Iterable[Interval]) -> float:
    """Sum the lengths of intervals that do not overlap."""
    return sum(end - start for start, end in intervals)


def overlap(left: Sequence[Interval], right: Sequence[Interval]) -> float:
    """Give how long both of two unions last at once.

    Args:
        left: As `union` gives them.
        right: As `union` gives them.

    Examples:
        >>> overlap([(0, 3)], [(1, 2), (2.5, 9)])
        1.5
    """
    return total(left) + total(right) - total(union([*left, *right]))
