"""What a picture says under the pointer, packed small enough to travel inside the page.

A grid is 16-bit codes of log10: 0 is no number, 1 is exactly zero, from 2 on steps of at most
0.004 decades, so that what is read differs from what was by less than 0.5 %. Smallest and
largest are stored as the first and the distance to it, low and high bytes apart, deflated.
`report.js` reads it back.

Shapes: R rows drawn, C bins, L layers, S series.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradwatch.readings import BoolArray, IntArray

STEP_DECADES = 0.004
NO_NUMBER, ZERO, FIRST_CODE, LAST_CODE = 0, 1, 2, 65535
MARKS = ("NaN or Inf seen", "exactly zero seen")
ABSENT = "no gradient"

Numbers = npt.NDArray[np.floating[Any]]
Codes = npt.NDArray[np.uint16]


class Series(NamedTuple):
    """A line of a picture.

    Attributes:
        name: What it is, with its unit.
        low: (C,) smallest value in each bin; NaN where there was none.
        high: (C,) largest.
    """

    name: str
    low: Numbers
    high: Numbers


def pack_grid(
    low: Numbers, high: Numbers, bad: BoolArray, zero: BoolArray, rows: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Pack the extremes and marks of layers, joined as the rows of the picture are.

    Args:
        low: (L, C) smallest finite value; NaN where there was none.
        high: (L, C) largest.
        bad: (L, C) True where NaN or Inf was seen.
        zero: (L, C) True where the value was exactly zero.
        rows: (R,) first and last layer of each row, without gaps.

    Returns:
        Base, step and bytes of the codes.
    """
    starts = [first for first, _ in rows]
    low, high = np.fmin.reduceat(low, starts), np.fmax.reduceat(high, starts)
    marks = np.logical_or.reduceat(bad, starts) + 2 * np.logical_or.reduceat(zero, starts)
    base, step = _scale(low, high)
    first, last = _encode(low, base, step), _encode(high, base, step)
    planes = [*_planes(first), *_planes(last - first), marks.astype(np.uint8).tobytes()]
    return {"base": base, "step": step, "packed": _pack(b"".join(planes)), "marks": MARKS}


def pack_series(series: Sequence[Series]) -> dict[str, Any]:
    """Pack the extremes of lines.

    Args:
        series: (S,) the lines.

    Returns:
        Names, and bytes of 32-bit numbers: smallest and largest of each line in turn.
    """
    values = [np.asarray(part, "<f4") for each in series for part in (each.low, each.high)]
    packed = _pack(b"".join(part.tobytes() for part in values))
    return {"series": [each.name for each in series], "packed": packed}


def spans(first: IntArray, last: IntArray) -> list[list[int]]:
    """Give first and last step of each bin.

    Args:
        first: (C,) first steps.
        last: (C,) last steps.
    """
    return [list(ends) for ends in zip(first.tolist(), last.tolist(), strict=True)]


def row_names(layers: Sequence[str], rows: Sequence[tuple[int, int]]) -> list[str]:
    """Name the rows of a picture; one that joins several layers by its first and last.

    Args:
        layers: (L,) layer names.
        rows: (R,) first and last layer of each row.

    Examples:
        >>> row_names(["a", "b", "c"], [(0, 0), (1, 2)])
        ['a', 'b to c (2 layers)']
    """
    return [
        layers[first]
        if first == last
        else f"{layers[first]} to {layers[last]} ({last - first + 1} layers)"
        for first, last in rows
    ]


def _scale(low: Numbers, high: Numbers) -> tuple[float, float]:
    values = np.concatenate([low.ravel(), high.ravel()]).astype(np.float64)
    logs = np.log10(values[np.isfinite(values) & (values > 0)])
    if not logs.size:
        return 0.0, STEP_DECADES
    base, decades = float(logs.min()), float(np.ptp(logs))
    return base, max(STEP_DECADES, decades / (LAST_CODE - FIRST_CODE))


def _encode(values: Numbers, base: float, step: float) -> Codes:
    positive = np.isfinite(values) & (values > 0)
    logs = np.log10(np.where(positive, values, 1.0).astype(np.float64))
    codes = np.where(positive, FIRST_CODE + np.rint((logs - base) / step), NO_NUMBER)
    return np.where(values == 0, ZERO, codes).astype(np.uint16)


def _planes(codes: Codes) -> tuple[bytes, bytes]:
    low, high = codes & 255, codes >> 8
    return low.astype(np.uint8).tobytes(), high.astype(np.uint8).tobytes()


def _pack(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode("ascii")
