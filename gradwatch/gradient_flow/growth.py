"""Growth of a norm over time: when it began and how fast it goes."""

from __future__ import annotations

import math
from typing import NamedTuple

FEWEST_POINTS = 2
MOST_POINTS = 64
DIP = 0.5


class Growth(NamedTuple):
    """A run of steps over which a norm rises.

    Attributes:
        first_step: Step the run began at.
        steps: Steps since then.
        start: Norm at the first step.
        factor: Norm now over norm at the first step.
        per_step: Mean growth factor of one step.
    """

    first_step: int
    steps: int
    start: float
    factor: float
    per_step: float


class GrowthState(NamedTuple):
    """What is remembered: the run of rising norms, oldest first.

    Attributes:
        points: (step, norm) pairs of the run; a fall below half of the last ends it.
    """

    points: tuple[tuple[int, float], ...] = ()


def update_growth(state: GrowthState, step: int, norm: float) -> GrowthState:
    """Take one norm in.

    A small dip does not end a run (training is noisy); a norm below half of the
    highest of the run does, and a norm that is not above the first restarts it.

    Args:
        state: The state so far.
        step: Optimizer step.
        norm: Gradient norm; non-finite and zero norms leave the state as it is.

    Returns:
        The next state.
    """
    if not math.isfinite(norm) or norm <= 0:
        return state
    points = state.points
    highest = max((value for _, value in points), default=0.0)
    if not points or norm <= points[0][1] or norm < DIP * highest:
        return GrowthState(((step, norm),))
    kept = points if len(points) < MOST_POINTS else (points[0], *points[2:])
    return GrowthState((*kept, (step, norm)))


def growth(state: GrowthState) -> Growth | None:
    """Say how the present run grew; None before its second step.

    Examples:
        >>> state = GrowthState()
        >>> for step in range(4):
        ...     state = update_growth(state, step, 10.0**step)
        >>> growth(state).factor, growth(state).first_step
        (1000.0, 0)
    """
    if len(state.points) < FEWEST_POINTS:
        return None
    (first, start), (last, now) = state.points[0], state.points[-1]
    factor, steps = now / start, last - first
    return Growth(first, steps, start, factor, factor ** (1 / max(steps, 1)))
