"""The whole run in bounded memory: per-layer profiles and scalars, in bins of steps.

A bin keeps the finite extremes of what fell into it, and whether anything in it was non-finite
or exactly zero. When the bins are used up, each two neighbours become one and the span of the
next ones doubles: no mark is ever lost. Stored as float32, clipped into its range, with the
zeros and the non-finite told apart before that.

Shapes: L layers seen so far, C bins in use, K keys. 2,000 layers take about 9 MB at 400 bins,
and 2.5 MB for each further family.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gradwatch.binning import Axis, as_slice, fold_pairs
from gradwatch.readings import BoolArray, FloatArray, IntArray, StepRecord

COLUMNS = 400
# What else is drawn per layer is drawn as lines over layers, which need fewer columns.
OTHER_COLUMNS = 100
FAMILIES = ("grad_norm", "update_ratio", "act_grad", "weight_norm")
MOST_ORDERS = 64

Float32Array = npt.NDArray[np.float32]
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
LARGEST = float(np.finfo(np.float32).max)


class LayerBins(NamedTuple):
    """One family of per-layer numbers over the run.

    Attributes:
        layers: (L,) layer names in execution order.
        first: (C,) first step of each bin, on the logger's x axis.
        last: (C,) last step of each bin.
        low: (L, C) smallest finite value in the bin; NaN where there was none.
        high: (L, C) largest finite value in the bin; NaN where there was none.
        bad: (L, C) True where NaN or Inf was seen.
        zero: (L, C) True where the value was exactly zero at least once.
        latest: (L,) the last value of each layer: inf where it was NaN or Inf, NaN where
            there is none.
    """

    layers: tuple[str, ...]
    first: IntArray
    last: IntArray
    low: Float32Array
    high: Float32Array
    bad: BoolArray
    zero: BoolArray
    latest: FloatArray


class ScalarBins(NamedTuple):
    """One scalar over the run.

    Attributes:
        first: (C,) first step of each bin, on the logger's x axis.
        last: (C,) last step of each bin.
        low: (C,) smallest value in the bin; NaN where there was none.
        high: (C,) largest value in the bin; NaN where there was none.
        latest: (C,) last value in the bin; NaN where there was none.
    """

    first: IntArray
    last: IntArray
    low: FloatArray
    high: FloatArray
    latest: FloatArray


class History:
    """Take in recorded steps, and give them back in at most ``columns`` bins.

    Args:
        columns: Most bins of the gradient norms and the scalars; the other families of
            per-layer numbers get a quarter. Rounded up to an even number.

    Examples:
        >>> history = History(columns=2)
        >>> for step, norm in enumerate((3.0, 4.0, 5.0)):
        ...     history.add(StepRecord(step=step, log_step=step, scalars={"grad/norm": norm}))
        >>> bins = history.scalar("grad/norm")
        >>> bins.first.tolist(), bins.last.tolist(), bins.low.tolist(), bins.high.tolist()
        ([0, 2], [1, 2], [3.0, 5.0], [4.0, 5.0])
    """

    def __init__(self, columns: int = COLUMNS) -> None:
        """Start empty."""
        others = max(columns * OTHER_COLUMNS // COLUMNS, 2)
        self._layers = {
            name: _Layers(columns if name == "grad_norm" else others) for name in FAMILIES
        }
        self._scalars = _Scalars(columns)

    def add(self, record: StepRecord) -> None:
        """Take in a record; a second one of the same step adds to the first's bin.

        Args:
            record: What the sinks are handed for a step.
        """
        self._scalars.add(record)
        if record.flow is None:
            return
        for name, kept in self._layers.items():
            values = getattr(record.flow, name)
            if values is not None:
                kept.add(record.log_step, record.flow.layers, values)

    def layers(self, family: str = "grad_norm") -> LayerBins:
        """Give a family of per-layer numbers.

        Args:
            family: ``"grad_norm"``, ``"update_ratio"``, ``"act_grad"`` or ``"weight_norm"``.

        Returns:
            Its bins, without layers and bins where nothing of it was recorded.
        """
        return self._layers[family].bins()

    def scalar(self, key: str) -> ScalarBins | None:
        """Give a scalar's bins; None where it was never recorded.

        Args:
            key: Metric key, such as ``"grad/norm"``.
        """
        return self._scalars.bins(key)

    def keys(self) -> tuple[str, ...]:
        """Give the keys of all scalars, in the order they first came."""
        return tuple(self._scalars.index)


class _Layers:
    """One family; arrays stand bin by bin, so that a record touches one stretch of memory."""

    def __init__(self, columns: int) -> None:
        self._axis = Axis(columns)
        self._index: dict[str, int] = {}
        self._rows: dict[tuple[str, ...], IntArray | slice] = {}
        self._orders: dict[frozenset[str], tuple[str, ...]] = {}
        self._latest: FloatArray = np.empty(0)
        self._low: Float32Array = np.empty((self._axis.columns, 0), np.float32)
        self._high: Float32Array = self._low.copy()
        self._bad: BoolArray = np.empty((self._axis.columns, 0), np.bool_)
        self._zero: BoolArray = self._bad.copy()

    def add(self, step: int, layers: tuple[str, ...], values: FloatArray) -> None:
        rows = self._find_rows(layers)
        if self._axis.is_full_for(step):
            self._fold()
        column = self._axis.open(step)
        self._latest[rows] = values
        kept = _fit(values)
        self._bad[column, rows] |= np.isinf(values)
        self._zero[column, rows] |= kept == 0
        self._low[column, rows] = np.fmin(self._low[column, rows], kept)
        self._high[column, rows] = np.fmax(self._high[column, rows], kept)

    def bins(self) -> LayerBins:
        layers = self._in_order()
        used = len(self._axis.first)
        rows = np.asarray([self._index[layer] for layer in layers], dtype=np.int64)
        first, last = self._axis.steps()
        low, high = (grid[:used, rows].T for grid in (self._low, self._high))
        bad, zero = (grid[:used, rows].T for grid in (self._bad, self._zero))
        return LayerBins(layers, first, last, low, high, bad, zero, self._latest[rows])

    def _fold(self) -> None:
        self._axis.fold()
        fold_pairs(self._low, np.fmin, np.nan)
        fold_pairs(self._high, np.fmax, np.nan)
        fold_pairs(self._bad, np.logical_or, fill=False)
        fold_pairs(self._zero, np.logical_or, fill=False)

    def _in_order(self) -> tuple[str, ...]:
        # Two optimizers have layers each; the bigger part of the model comes first.
        orders = sorted(self._orders.values(), key=len, reverse=True)
        return tuple(dict.fromkeys(layer for order in orders for layer in order))

    def _find_rows(self, layers: tuple[str, ...]) -> IntArray | slice:
        rows = self._rows.get(layers)
        if rows is None:
            self._make_room([layer for layer in layers if layer not in self._index])
            rows = as_slice(np.asarray([self._index[layer] for layer in layers], dtype=np.int64))
            # A model whose layers come and go must not fill memory with its combinations.
            self._rows = {**self._rows, layers: rows} if len(self._rows) < MOST_ORDERS else {}
            self._orders[frozenset(layers)] = layers
        return rows

    def _make_room(self, new: list[str]) -> None:
        self._index.update({layer: len(self._index) + i for i, layer in enumerate(new)})
        self._latest = np.append(self._latest, np.full(len(new), np.nan))
        gap = np.full((self._axis.columns, len(new)), np.nan, np.float32)
        self._low, self._high = np.hstack([self._low, gap]), np.hstack([self._high, gap])
        unmarked = np.zeros(gap.shape, np.bool_)
        self._bad, self._zero = np.hstack([self._bad, unmarked]), np.hstack([self._zero, unmarked])


class _Scalars:
    def __init__(self, columns: int) -> None:
        self.index: dict[str, int] = {}
        self._axis = Axis(columns)
        self._low: FloatArray = np.empty((self._axis.columns, 0))
        self._high, self._latest = self._low.copy(), self._low.copy()

    def add(self, record: StepRecord) -> None:
        self._make_room([key for key in record.scalars if key not in self.index])
        if self._axis.is_full_for(record.log_step):
            self._axis.fold()
            fold_pairs(self._low, np.fmin, np.nan)
            fold_pairs(self._high, np.fmax, np.nan)
            fold_pairs(self._latest, _later, np.nan)
        column = self._axis.open(record.log_step)
        rows = [self.index[key] for key in record.scalars]
        values = np.asarray(list(record.scalars.values()), dtype=np.float64)
        self._low[column, rows] = np.fmin(self._low[column, rows], values)
        self._high[column, rows] = np.fmax(self._high[column, rows], values)
        self._latest[column, rows] = values

    def bins(self, key: str) -> ScalarBins | None:
        if key not in self.index:
            return None
        row, used = self.index[key], len(self._axis.first)
        low, high, latest = (
            grid[:used, row].copy() for grid in (self._low, self._high, self._latest)
        )
        return ScalarBins(*self._axis.steps(), low, high, latest)

    def _make_room(self, new: list[str]) -> None:
        if not new:
            return
        self.index.update({key: len(self.index) + i for i, key in enumerate(new)})
        gap = np.full((self._axis.columns, len(new)), np.nan)
        self._low, self._high = np.hstack([self._low, gap]), np.hstack([self._high, gap])
        self._latest = np.hstack([self._latest, gap])


def _fit(values: FloatArray) -> Float32Array:
    """Make float32 of the finite values without turning a small one into zero or a big into Inf."""
    sized = np.minimum(values, LARGEST)
    np.maximum(sized, SMALLEST, out=sized, where=values > 0)
    sized[np.isinf(values)] = np.nan
    return sized.astype(np.float32)


def _later(earlier: FloatArray, later: FloatArray) -> FloatArray:
    return np.where(np.isnan(later), earlier, later)
