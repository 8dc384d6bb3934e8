"""Is one variant faster than another? Paired, interleaved measurements and a rule for noise.

Each pair runs both variants one right after the other, in alternating order, so that a machine
that slows down or speeds up does it to both. What is judged is the ratio within the pairs, and
its confidence interval comes from order statistics: no distribution is assumed, and a few pairs
that another process disturbed move nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

__all__ = ["Comparison", "compare", "interval", "judge"]

WARM_UPS = 2
CONFIDENCE = 0.99
# Several times slower in each warm-up is no noise.
HOPELESS = 3.0


class Comparison(NamedTuple):
    """What paired measurements say.

    Attributes:
        before_seconds: Median time of the first variant.
        after_seconds: Median time of the second.
        ratio: Median of second / first within the pairs.
        low: Lower end of the ratio's confidence interval.
        high: Upper end.
        pairs: Number of pairs.
    """

    before_seconds: float
    after_seconds: float
    ratio: float
    low: float
    high: float
    pairs: int

    def faster(self, gain: float) -> bool:
        """Tell whether even the upper end of the interval gains that share of the time.

        Args:
            gain: Share of the time to be gained, such as 0.005.
        """
        return self.high < 1 - gain

    def slower(self, gain: float) -> bool:
        """Tell whether even the lower end of the interval gains less than that share.

        Args:
            gain: Share of the time to be gained.
        """
        return self.low > 1 - gain


Measure = Callable[[], float]
Gather = Callable[[list[tuple[float, float]]], Sequence[list[tuple[float, float]]]]


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Give a confidence interval of the median from order statistics (Conover 1999, ch. 3.2).

    Args:
        values: Independent values.
        confidence: Probability that the interval holds the median.

    Returns:
        Its ends; the smallest and largest value where there are too few for that confidence.

    >>> interval([5, 1, 2, 9, 3, 4, 8, 6, 7, 10, 11, 12], 0.99)
    (2, 11)
    """
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0
    while rank < (count - 1) // 2:
        tail += math.comb(count, rank) / 2**count
        if 2 * tail > 1 - confidence:
            break
        rank += 1
    low = max(rank - 1, 0)
    return ordered[low], ordered[count - 1 - low]


def judge(pairs: Sequence[tuple[float, float]]) -> Comparison:
    """Say what pairs of times come to.

    Args:
        pairs: Seconds of the first and the second variant, measured together.
    """
    ratios = [after / before for before, after in pairs]
    low, high = interval(ratios)
    return Comparison(
        median(before for before, _ in pairs),
        median(after for _, after in pairs),
        median(ratios),
        low,
        high,
        len(pairs),
    )


def compare(
    before: Measure,
    after: Measure,
    *,
    gain: float,
    pairs: int = 12,
    most_pairs: int = 48,
    gather: Gather = lambda own: [own],
) -> Comparison:
    """Measure two variants in turns until one is shown to be the better, or patience ends.

    Args:
        before: Takes the time of the first variant.
        after: Takes the time of the second.
        gain: Share of the time the second has to gain.
        pairs: Pairs of the first look; each further look doubles them.
        most_pairs: Pairs after which undecided stays undecided.
        gather: Collects the pairs of all ranks. A step lasts as long as on the slowest rank.

    Returns:
        The comparison of all pairs.
    """
    warm = _join(gather([_pair(before, after, swapped=False) for _ in range(WARM_UPS)]))
    if all(slow > HOPELESS * fast for fast, slow in warm):
        return judge(warm)
    own: list[tuple[float, float]] = []
    while True:
        while len(own) < pairs:
            own.append(_pair(before, after, swapped=len(own) % 2 == 1))
        found = judge(_join(gather(own)))
        if found.faster(gain) or found.slower(gain) or pairs >= most_pairs:
            return found
        pairs = min(2 * pairs, most_pairs)


def _pair(before: Measure, after: Measure, *, swapped: bool) -> tuple[float, float]:
    if swapped:
        second = after()
        return before(), second
    return before(), after()


def _join(ranks: Sequence[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    return [_slowest(each) for each in zip(*ranks, strict=True)]


def _slowest(pair_of_each_rank: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return max(own for own, _ in pair_of_each_rank), max(own for _, own in pair_of_each_rank)
