"""What is faster is told from noise, and what is not is not."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from gradwatch.fused.timing import Comparison, compare, interval, judge


def clock(seconds: float, noise: float, seed: int) -> Callable[[], float]:
    generator = np.random.default_rng(seed)
    return lambda: seconds * math.exp(generator.normal(0, noise))


def test_an_interval_of_few_values_is_their_range() -> None:
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_a_single_outlier_moves_no_end_of_the_interval() -> None:
    values = [1.0 + i / 100 for i in range(12)]
    assert interval([*values[:-1], 1000.0])[0] == interval(values)[0]
    assert interval([*values[:-1], 1000.0])[1] == interval(values)[1]


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    generator, misses = np.random.default_rng(2), 0
    for _ in range(2000):
        low, high = interval(generator.normal(size=12).tolist())
        misses += not low <= 0 <= high
    assert misses / 2000 <= 0.01 + 3 * math.sqrt(0.01 / 2000)


def test_a_gain_well_above_the_noise_is_found() -> None:
    found = compare(clock(1.0, 0.02, 0), clock(0.9, 0.02, 1), gain=0.002)
    assert found.faster(0.002)
    assert found.ratio == pytest.approx(0.9, abs=0.03)


def test_equal_variants_are_not_told_apart_however_often_one_asks() -> None:
    told = [
        compare(clock(1.0, 0.05, seed), clock(1.0, 0.05, seed + 500), gain=0.0).faster(0.0)
        for seed in range(200)
    ]
    # Up to three looks at 99 % confidence, one-sided: under 1.5 % each.
    assert sum(told) <= 8


def test_a_gain_smaller_than_what_is_asked_for_does_not_pay() -> None:
    found = compare(clock(1.0, 0.001, 0), clock(0.98, 0.001, 1), gain=0.05)
    assert not found.faster(0.05)
    assert found.slower(0.05)


@pytest.mark.parametrize("course", [lambda n: 1 + n / 20, lambda n: 1 / (1 + n / 20)])
def test_a_machine_that_slows_down_or_speeds_up_does_it_to_both(
    course: Callable[[int], float],
) -> None:
    taken = [0]

    def measure() -> float:
        taken[0] += 1
        return course(taken[0])

    found = compare(measure, measure, gain=0.0)
    assert not found.faster(0.0)
    assert not found.slower(0.0)


@pytest.mark.parametrize("count", range(8, 60))
def test_the_interval_is_the_narrowest_that_is_sure_enough(count: int) -> None:
    low, high = interval(list(range(count)))
    assert low + high == count - 1

    def missed(rank: float) -> float:
        """Give the probability that no more than so many values lie below the median, or above."""
        return 2 * sum(math.comb(count, each) for each in range(int(rank) + 1)) / 2**count

    assert missed(low) <= 0.01 < missed(low + 1)


def test_what_is_never_decided_is_measured_as_often_as_was_asked_for() -> None:
    found = compare(clock(1.0, 0.0, 0), clock(1.0, 0.0, 1), gain=0.0, pairs=4, most_pairs=10)
    assert found.pairs == 10


def test_what_is_several_times_slower_is_measured_twice_only() -> None:
    found = compare(clock(1.0, 0.0, 0), clock(10.0, 0.0, 1), gain=0.0)
    assert found.pairs == 2
    assert found.slower(0.0)


def test_the_slowest_rank_decides() -> None:
    own = [(1.0, 0.5)] * 12
    other = [(1.0, 1.5)] * 12
    found = compare(
        clock(1.0, 0.0, 0), clock(0.5, 0.0, 0), gain=0.0,
        gather=lambda mine: [mine, other[: len(mine)]],
    )  # fmt: skip
    assert not found.faster(0.0)
    assert judge(own).faster(0.0)


def test_times_are_given_beside_the_ratio() -> None:
    assert judge([(1.0, 2.0), (1.0, 2.0)]) == Comparison(1.0, 2.0, 2.0, 2.0, 2.0, 2)
