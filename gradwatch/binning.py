"""A step axis of bounded length, and the folding of what stands on it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwatch.readings import IntArray


class Axis:
    """Give each step a bin; fold when there are no more.

    Attributes:
        columns: Most bins; even.
        first: First step of each bin in use.
        last: Last step of each bin in use.
    """

    def __init__(self, columns: int) -> None:
        """Start without a bin.

        Args:
            columns: Most bins; rounded up to an even number, 2 at least.
        """
        self.columns = max(columns + columns % 2, 2)
        self.first: list[int] = []
        self.last: list[int] = []
        self._span = 1
        self._held = 0
        self._step: int | None = None

    def is_full_for(self, step: int) -> bool:
        """Say whether the axis must be folded before the step has a bin."""
        return self._needs_bin(step) and len(self.first) == self.columns

    def open(self, step: int) -> int:
        """Give the index of the step's bin; the same step twice in a row counts once.

        Args:
            step: On the logger's x axis. One that lies behind the last (a resumed run) is
                appended like any other.
        """
        if self._needs_bin(step):
            self.first.append(step)
            self.last.append(step)
            self._held = 0
        if step != self._step:
            self._held += 1
            self._step = step
        self.first[-1] = min(self.first[-1], step)
        self.last[-1] = max(self.last[-1], step)
        return len(self.first) - 1

    def fold(self) -> None:
        """Join each two neighbouring bins; those to come span twice as many steps."""
        self.first = self.first[::2]
        self.last = [max(pair) for pair in zip(self.last[::2], self.last[1::2], strict=True)]
        self._span *= 2
        self._held = self._span

    def steps(self) -> tuple[IntArray, IntArray]:
        """Give first and last step of each bin, (C,) each."""
        return np.asarray(self.first, dtype=np.int64), np.asarray(self.last, dtype=np.int64)

    def _needs_bin(self, step: int) -> bool:
        return not self.first or (step != self._step and self._held >= self._span)


def fold_pairs(grid: npt.NDArray[Any], join: Callable[..., npt.NDArray[Any]], fill: object) -> None:
    """Join neighbours along the first dimension, in place; the second half becomes free.

    Args:
        grid: (C, …) with an even C.
        join: Makes one of two.
        fill: What stands in a free place.
    """
    half = len(grid) // 2
    grid[:half] = join(grid[::2], grid[1::2])
    grid[half:] = fill


def as_slice(rows: IntArray) -> IntArray | slice:
    """Give a slice where indices follow on one another: it needs no copy."""
    whole = slice(int(rows[0]), int(rows[-1]) + 1) if rows.size else slice(0)
    return whole if np.array_equal(rows, np.arange(whole.start or 0, whole.stop)) else rows
