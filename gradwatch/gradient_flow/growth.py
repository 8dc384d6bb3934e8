"""Growth of a norm over time: when it began and how fast it goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

FEWEST_POINTS = 2
MOST_POINTS = 64
DIP = 0.5
RECORD_SHARE = 0.1


class Growth(NamedTuple):
    """A run of steps over which a norm rises.

    Attributes:
        first_step: Step the run began at.
        steps: Steps since then.
        start: Norm at the first step.
        factor: Norm now over norm at the first step.
        per_step: Mean growth factor of one step.
        record: Norm now over the highest before the run; inf where there was none.
    """

    first_step: int
    steps: int
    start: float
    factor: float
    per_step: float
    record: float

    def exceeds(self, threshold: float) -> bool:
        """Tell whether the growth is more than a recovery from a low.

        A model that has converged and is thrown off grows by any factor, up to where it once
        was. So the norm must also pass a tenth of the threshold over everything before the run.

        Args:
            threshold: Growth factor that counts.
        """
        return self.factor >= threshold and self.record >= RECORD_SHARE * threshold


class GrowthState(NamedTuple):
    """What is remembered: the run of rising norms, oldest first.

    Attributes:
        points: (step, norm) pairs of the run; a fall below half of the highest ends it.
        before: Highest norm before the run; 0 where there was none.
    """

    points: tuple[tuple[int, float], ...] = ()
    before: float = 0.0

    @property
    def highest(self) -> float:
        """Highest norm ever seen; 0 before the first."""
        return max([self.before, *(norm for _, norm in self.points)])

    def state_dict(self) -> dict[str, Any]:
        """Give primitives."""
        return {"points": [list(point) for point in self.points], "before": self.before}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> GrowthState:
        """Give back what `state_dict` gave.

        Args:
            state: What it gave.
        """
        points = tuple((int(step), float(norm)) for step, norm in state["points"])
        return cls(points, float(state["before"]))


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
        return GrowthState(((step, norm),), max(state.before, highest))
    kept = points if len(points) < MOST_POINTS else (points[0], *points[2:])
    return GrowthState((*kept, (step, norm)), state.before)


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
    record = now / state.before if state.before else math.inf
    return Growth(first, steps, start, factor, factor ** (1 / max(steps, 1)), record)
