"""Gradient norms over the whole run in bounded memory: layers × at most 400 columns.

Shapes: L layers seen so far, C columns kept. 2,000 layers × 400 columns are 6.4 MB.
"""

from typing import NamedTuple

import numpy as np

from gradwatch.readings import FloatArray, FlowReading

COLUMNS = 400


class Grid(NamedTuple):
    """What a picture draws.

    Attributes:
        layers: (L,) layer names in execution order.
        steps: (C,) step of each column.
        norms: (L, C) gradient norms: +inf where NaN or Inf was seen anywhere in the
            column's span, NaN where the layer had no gradient or its norm is unknown.
    """

    layers: tuple[str, ...]
    steps: list[int]
    norms: FloatArray


class History:
    """Keep the gradient norms of the steps it is handed; thin them when they are too many.

    Thinning drops every second column and doubles the span of those that come, but a
    non-finite norm of a dropped step stays marked.

    Examples:
        >>> history = History(columns=2)
        >>> flow = FlowReading(
        ...     layers=("net",),
        ...     grad_norm=np.array([1.0]),
        ...     weight_norm=np.array([1.0]),
        ...     has_grad=np.array([True]),
        ...     frozen=np.array([False]),
        ... )
        >>> for step in range(5):
        ...     history.add(step, flow)
        >>> history.grid().steps
        [0, 4]
    """

    def __init__(self, columns: int = COLUMNS) -> None:
        """Start empty; an even number of columns is kept at most."""
        self._columns = columns
        self._span = 1
        self._added = 0
        self._steps: list[int] = []
        self._last = -1
        self._index: dict[str, int] = {}
        self._order: tuple[str, ...] = ()
        self._norms: FloatArray = np.empty((0, columns))

    def __len__(self) -> int:
        """Count the columns."""
        return len(self._steps)

    def add(self, step: int, flow: FlowReading) -> None:
        """Take in one profile; a second one of the same step fills in its other layers.

        Args:
            step: The logger's x axis.
            flow: Profile of the step.
        """
        rows = self._rows(flow.layers)
        fresh = self._open(step)
        column = self._norms[rows, len(self._steps) - 1]
        marked = np.isinf(column) | np.isinf(flow.grad_norm)
        value = flow.grad_norm if fresh else column
        self._norms[rows, len(self._steps) - 1] = np.where(marked, np.inf, value)

    def grid(self) -> Grid:
        """Give what is kept, in the execution order last seen."""
        ordered = set(self._order)
        rest = [layer for layer in self._index if layer not in ordered]
        layers = (*self._order, *rest)
        rows = [self._index[layer] for layer in layers]
        return Grid(layers, list(self._steps), self._norms[rows, : len(self._steps)])

    def _open(self, step: int) -> bool:
        """Make room for the step; False where it only adds marks to the last column."""
        if step == self._last:
            return bool(self._steps[-1] == step)
        self._last = step
        fresh = self._added % self._span == 0
        self._added += 1
        if fresh:
            if len(self._steps) == self._columns:
                self._thin()
            self._norms[:, len(self._steps)] = np.nan
            self._steps.append(step)
        return fresh

    def _thin(self) -> None:
        pairs = self._norms.reshape(len(self._norms), -1, 2)
        kept = np.where(np.isinf(pairs).any(axis=2), np.inf, pairs[:, :, 0])
        self._norms[:, : kept.shape[1]] = kept
        self._norms[:, kept.shape[1] :] = np.nan
        self._steps = self._steps[::2]
        self._span *= 2

    def _rows(self, layers: tuple[str, ...]) -> list[int]:
        new = [layer for layer in layers if layer not in self._index]
        if new:
            self._index.update({layer: len(self._index) + i for i, layer in enumerate(new)})
            room = np.full((len(new), self._columns), np.nan)
            self._norms = np.vstack([self._norms, room])
        if len(layers) >= len(self._order):
            self._order = layers
        return [self._index[layer] for layer in layers]
