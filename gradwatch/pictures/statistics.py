"""Numbers behind the lines: middles of bins, percentiles without warnings.

Shapes: L layers, C bins of steps.
"""

import numpy as np

from gradwatch.history import LayerBins
from gradwatch.readings import FloatArray


def middles(bins: LayerBins) -> FloatArray:
    """Give log10 of the middle of each bin on the logarithmic scale.

    A bin that saw zeros too is stood for by its largest value.

    Args:
        bins: Numbers that are not negative.

    Returns:
        (L, C), NaN where nothing positive and finite was seen.
    """
    low, high = bins.low, bins.high
    positive = high > 0
    start = np.log10(np.where(low > 0, low, np.where(positive, high, 1)))
    end = np.log10(np.where(positive, high, 1))
    return np.where(positive, (start + end) / 2, np.nan).astype(np.float64)


def percentiles(logs: FloatArray, wanted: tuple[float, ...], axis: int) -> FloatArray:
    """Give 10 to the power of percentiles along an axis, over what is known.

    Args:
        logs: (L, C), NaN where unknown.
        wanted: 0 to 100.
        axis: 0 over layers, 1 over bins.

    Returns:
        One row for each wanted percentile; NaN where nothing is known.
    """
    rows = logs if axis == 1 else logs.T
    ordered = np.sort(rows, axis=1)
    known = np.isfinite(rows).sum(axis=1)
    results = np.full((len(wanted), len(rows)), np.nan)
    some = np.flatnonzero(known)
    for index, percent in enumerate(wanted):
        at = percent / 100 * (known[some] - 1)
        below = np.floor(at).astype(np.int64)
        above = np.minimum(below + 1, known[some] - 1)
        part = at - below
        mixed = ordered[some, below] * (1 - part) + ordered[some, above] * part
        results[index, some] = 10**mixed
    return results
