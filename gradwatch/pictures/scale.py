"""From values to fractions of an axis, and the ticks on it."""

import math
from typing import NamedTuple

import numpy as np

from gradwatch.pictures.lettering import power
from gradwatch.readings import FloatArray, IntArray

SMALLEST = 1e-45
STEPS = (1, 2, 5, 10)
LEAST_PLAIN = 1e-3
UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Tick(NamedTuple):
    """A place on an axis.

    Attributes:
        place: 0 to 1.
        label: What is written at it; may be empty.
    """

    place: float
    label: str


class Scale(NamedTuple):
    """A linear or logarithmic axis.

    Attributes:
        low: Value at its start; above zero where it is logarithmic.
        high: Value at its end.
        logarithmic: Equal factors take equal lengths.
    """

    low: float
    high: float
    logarithmic: bool = False

    def places(self, values: FloatArray) -> FloatArray:
        """Give the fraction of the axis for each value; NaN where it has no place."""
        if self.logarithmic:
            usable = np.isfinite(values) & (values > 0)
            logs = np.log10(np.where(usable, np.maximum(values, SMALLEST), 1.0))
            low, high = math.log10(self.low), math.log10(self.high)
            return np.where(usable, (logs - low) / (high - low), np.nan)
        finite = np.where(np.isfinite(values), values, np.nan)
        return (finite - self.low) / (self.high - self.low)

    def ticks(self, most: int = 7) -> list[Tick]:
        """Give round values inside the axis.

        Args:
            most: About how many at most.
        """
        if not self.logarithmic:
            values = round_values(self.low, self.high, most)
            labels = [short_number(value) for value in values]
        elif math.log10(self.high / self.low) < 2:  # noqa: PLR2004 - few powers to stand on
            values = _ones_twos_fives(self.low, self.high)
            labels = [short_number(value) for value in values]
        else:
            exponents = _exponents(self.low, self.high, most)
            values = [10.0**exponent for exponent in exponents]
            labels = [power(exponent) for exponent in exponents]
        places = self.places(np.asarray(values, dtype=np.float64))
        return [Tick(float(p), label) for p, label in zip(places, labels, strict=True)]


def log_scale(*values: FloatArray, decades: float = 1.0) -> Scale:
    """Give a logarithmic axis that holds all positive finite values.

    Args:
        values: What is drawn.
        decades: Least length of the axis: a narrower one would blow up noise.
    """
    joined = np.concatenate([np.ravel(value) for value in values]) if values else np.empty(0)
    usable = joined[np.isfinite(joined) & (joined > 0)]
    if not usable.size:
        return Scale(0.1, 1.0, logarithmic=True)
    low, high = np.log10(np.maximum([usable.min(), usable.max()], SMALLEST))
    missing = max(decades - (high - low), 0.0) / 2
    margin = 0.05 * max(high - low, decades)
    low, high = low - missing - margin, min(high + missing + margin, 308.0)
    return Scale(float(10 ** max(low, -320.0)), float(10**high), logarithmic=True)


def linear_scale(*values: FloatArray, zero: bool = True) -> Scale:
    """Give a linear axis that holds all finite values.

    Args:
        values: What is drawn.
        zero: Begin (or end) at zero.
    """
    joined = np.concatenate([np.ravel(value) for value in values]) if values else np.empty(0)
    usable = joined[np.isfinite(joined)]
    low, high = (float(usable.min()), float(usable.max())) if usable.size else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    keeps_zero = zero and low == 0
    return Scale(low if keeps_zero else low - margin, high + margin)


def step_ticks(first: IntArray, last: IntArray, most: int = 7) -> list[Tick]:
    """Give round steps on an axis whose bins are all equally wide.

    Args:
        first: (C,) first step of each bin.
        last: (C,) last step of each bin.
        most: About how many at most.
    """
    count = len(first)
    if not count:
        return []
    low, high = int(first.min()), int(last.max())
    if count == 1 or low == high:
        return [Tick(0.5 / count, f"{low:,}")]
    wanted = [round(value) for value in round_values(low, high, most)]
    steps = [step for step in sorted(set(wanted)) if step >= low]
    return [Tick((_bin_of(step, first, last) + 0.5) / count, f"{step:,}") for step in steps]


def _bin_of(step: int, first: IntArray, last: IntArray) -> float:
    """Give the index of a step's bin, and a place between two where none holds it."""
    index = int(np.argmax(last >= step))
    missed = int(first[index]) - step
    if not index or missed <= 0:
        return index
    return index - missed / int(first[index] - last[index - 1])


def round_values(low: float, high: float, most: int) -> list[float]:
    """Give multiples of 1, 2 or 5 times a power of ten.

    Examples:
        >>> round_values(0, 100, 6)
        [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    raw = (high - low) / max(most - 1, 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in STEPS if size * factor >= raw * (1 - 1e-9))
    start, end = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(start, end + 1)]


def short_number(value: float) -> str:
    """Write a number in few signs.

    Examples:
        >>> short_number(65536.0), short_number(0.00002), short_number(-3.0)
        ('65.5k', '2e−5', '−3')
    """
    for size, unit in UNITS:
        if abs(value) >= size * 10:
            return f"{value / size:.3g}{unit}".replace("-", "−", 1)
    text = f"{value:.4g}"
    if value and abs(value) < LEAST_PLAIN:
        digits, exponent = f"{value:.3e}".split("e")
        text = f"{float(digits):g}e{int(exponent)}"
    return text.replace("-", "−")


def _ones_twos_fives(low: float, high: float) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    return [value for value in every if low <= value <= high]


def _exponents(low: float, high: float, most: int) -> list[int]:
    start, end = math.ceil(math.log10(low)), math.floor(math.log10(high))
    stride = max(1, math.ceil((end - start + 1) / most))
    return [exponent for exponent in range(start, end + 1) if exponent % stride == 0]
