"""The ratio and the two rules, on plain numbers and on a reading."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gradwatch.adaptive_lr import (
    AdaptiveLearningRateOptions,
    clip_coefficient,
    init,
    norms_by_group,
    snr,
    update,
)
from gradwatch.readings import FlowReading, ParameterReading, StepReading

PLAIN = AdaptiveLearningRateOptions(averaging=0.0, warmup_steps=0, bounds=(0.1, 10.0))


def make_reading(
    weights: list[float], grads: list[float], groups: list[int], ndim: list[int]
) -> StepReading:
    names = tuple(f"p{index}" for index in range(len(weights)))
    parameters = ParameterReading(
        names=names,
        layer=np.arange(len(names)),
        group=np.array(groups),
        ndim=np.array(ndim),
        has_grad=~np.isneginf(grads),
        grad_norm=np.array(grads),
        weight_norm=np.array(weights),
    )
    flow = FlowReading(
        layers=names,
        grad_norm=parameters.grad_norm,
        weight_norm=parameters.weight_norm,
        has_grad=parameters.has_grad,
        frozen=~parameters.has_grad,
    )
    total = math.sqrt(sum(grad**2 for grad in grads if math.isfinite(grad)))
    return StepReading(
        step=0, log_step=0, optimizer="", parameters=parameters, flow=flow, grad_norm=total
    )


@pytest.mark.parametrize(
    ("weight_norm", "grad_norm"),
    [(0.0, 1.0), (1.0, 0.0), (1e-9, 1.0), (1.0, 1e-9), (math.nan, 1.0), (1.0, math.inf)],
)
def test_a_norm_that_is_zero_tiny_or_non_finite_changes_nothing(
    weight_norm: float, grad_norm: float
) -> None:
    ratio = snr(weight_norm, grad_norm, PLAIN.floor)
    assert math.isnan(ratio)
    assert update(ratio, init(), PLAIN) == (1.0, init())


@pytest.mark.parametrize(("ratio", "inverse"), [(2.0, 5.0), (10.0, 1.0), (40.0, 0.25)])
def test_the_two_rules_pull_in_opposite_directions(ratio: float, inverse: float) -> None:
    assert update(ratio, init(), PLAIN)[0] == pytest.approx(inverse, rel=1e-12)
    proportional = replace(PLAIN, rule="proportional")
    assert update(ratio, init(), proportional)[0] == pytest.approx(1 / inverse, rel=1e-12)


@pytest.mark.parametrize("ratio", [5e-324, 1e-8, 1e8, 1.7e308])
def test_the_factor_stays_within_its_bounds_whatever_the_ratio(ratio: float) -> None:
    assert update(ratio, init(), PLAIN)[0] in PLAIN.bounds


def test_the_average_equals_the_slow_weighted_mean_of_the_logarithms() -> None:
    options = replace(PLAIN, averaging=0.7, bounds=(1e-6, 1e6))
    state, ratios = init(), [3.0, 50.0, 8.0, 200.0]
    for ratio in ratios:
        factor, state = update(ratio, state, options)
    weights = [0.7**age for age in reversed(range(len(ratios)))]
    mean = math.fsum(w * math.log(r) for w, r in zip(weights, ratios, strict=True)) / sum(weights)
    assert factor == pytest.approx(10.0 / math.exp(mean), rel=1e-12)


def test_the_factor_grows_from_one_to_full_strength_over_the_warm_up() -> None:
    options = replace(PLAIN, warmup_steps=2)
    state, factors = init(), []
    for _ in range(4):
        factor, state = update(40.0, state, options)
        factors.append(factor)
    assert factors == pytest.approx([1.0, 0.5, 0.25, 0.25])


def test_an_unmeasured_step_leaves_the_average_as_it_was() -> None:
    _, state = update(40.0, init(), PLAIN)
    assert update(math.nan, state, PLAIN) == (1.0, state)


def test_norms_are_summed_per_group_without_biases_and_parameters_without_gradient() -> None:
    reading = make_reading(
        weights=[3.0, 4.0, 100.0, 7.0, 50.0],
        grads=[0.6, 0.8, 100.0, 2.0, -math.inf],
        groups=[0, 0, 0, 1, 1],
        ndim=[2, 2, 1, 2, 2],
    )
    first, second = norms_by_group(reading)
    assert first == pytest.approx((5.0, 1.0))
    assert second == pytest.approx((7.0, 2.0))


def test_biases_count_where_they_are_asked_for() -> None:
    reading = make_reading([3.0, 4.0], [0.6, 0.8], [0, 0], [2, 1])
    assert norms_by_group(reading, exclude_1d=False) == [pytest.approx((5.0, 1.0))]


def test_a_group_of_biases_alone_keeps_its_scheduled_rate() -> None:
    reading = make_reading([3.0, 4.0], [0.6, 0.8], [0, 1], [2, 1])
    norms = norms_by_group(reading)[1]
    assert math.isnan(snr(*norms, PLAIN.floor))


def test_a_gradient_that_could_not_be_measured_keeps_the_whole_group_as_scheduled() -> None:
    reading = make_reading([3.0, 4.0], [0.6, math.nan], [0, 0], [2, 2])
    assert math.isnan(snr(*norms_by_group(reading)[0], PLAIN.floor))


def test_the_clipped_gradient_is_the_one_that_counts() -> None:
    reading = replace(make_reading([5.0], [4.0], [0], [2]), grad_norm_clipped=1.0)
    assert norms_by_group(reading) == [pytest.approx((5.0, 1.0))]


@pytest.mark.parametrize("clipped", [None, math.nan, math.inf])
def test_an_unknown_clipped_norm_leaves_the_gradient_as_it_is(clipped: float | None) -> None:
    assert clip_coefficient(4.0, clipped) == 1.0


def test_a_reading_without_parameters_has_no_groups() -> None:
    assert norms_by_group(make_reading([], [], [], [])) == []
