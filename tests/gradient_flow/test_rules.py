"""The rules as pure functions: growth, rising, vanishing and where."""

import numpy as np
import pytest

from gradwatch.gradient_flow.growth import GrowthState, growth, update_growth
from gradwatch.gradient_flow.rules import (
    is_rising,
    reference_norm,
    vanishing_layers,
    where_it_vanishes,
)


def grow(*norms: float) -> GrowthState:
    state = GrowthState()
    for step, norm in enumerate(norms):
        state = update_growth(state, step, norm)
    return state


def test_growth_is_told_from_the_step_it_began() -> None:
    grown = growth(grow(8.0, 4.0, 1.0, 3.0, 9.0, 27.0))
    assert grown is not None
    assert (grown.first_step, grown.steps, grown.factor) == (2, 3, 27.0)
    assert grown.per_step == pytest.approx(3.0)


def test_a_small_dip_does_not_end_a_run_and_a_large_one_does() -> None:
    small, large = growth(grow(1.0, 10.0, 6.0, 20.0)), growth(grow(1.0, 10.0, 4.0, 20.0))
    assert small is not None
    assert large is not None
    assert (small.first_step, large.first_step) == (0, 2)


def test_a_recovery_from_a_low_does_not_count_as_exploding() -> None:
    recovered = growth(grow(5.0, 1e-4, 1e-2, 1.0, 4.0))
    exploded = growth(grow(5.0, 1e-4, 1e-2, 1.0, 80.0))
    assert recovered is not None
    assert exploded is not None
    assert not recovered.exceeds(100.0)
    assert exploded.exceeds(100.0)


def test_growth_from_the_first_step_needs_no_record_to_pass() -> None:
    grown = growth(grow(1.0, 10.0, 200.0))
    assert grown is not None
    assert grown.exceeds(100.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0])
def test_numbers_that_are_no_norm_leave_growth_as_it_is(bad: float) -> None:
    state = grow(1.0, 2.0)
    assert update_growth(state, 2, bad) == state


def test_a_long_run_keeps_its_beginning() -> None:
    state = grow(*(1.01**step for step in range(500)))
    grown = growth(state)
    assert grown is not None
    assert grown.first_step == 0
    assert len(state.points) <= 64


def test_growth_survives_a_checkpoint() -> None:
    state = grow(9.0, 1.0, 2.0, 4.0)
    assert GrowthState.restored(state.state_dict()) == state


def test_the_reference_is_the_median_of_the_strongest_quarter() -> None:
    assert reference_norm(np.array([1e-9, 1e-9, 1.0, 1.0, 1.0, 2.0, 3.0, 100.0])) == 51.5


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_vanishing_does_not_depend_on_the_scale_of_the_loss(scale: float) -> None:
    norms = scale * np.array([1e-9, 1e-7, 1e-3, 0.5, 1.0])
    marked = vanishing_layers(norms, np.ones(5, dtype=bool), 1e-5)
    assert marked.tolist() == [True, True, False, False, False]


def test_layers_that_cannot_be_judged_are_neither_marked_nor_a_reference() -> None:
    norms = np.array([1e-9, 1.0, 1e9])
    usable = np.array([True, True, False])
    assert vanishing_layers(norms, usable, 1e-5).tolist() == [True, False, False]
    assert not vanishing_layers(norms, np.array([True, False, False]), 1e-5).any()


def test_a_cliff_is_named_right_below_it_and_a_slope_at_its_low_end() -> None:
    usable = np.ones(6, dtype=bool)
    cliff = np.array([1e-8, 2e-8, 3e-8, 0.9, 1.0, 1.0])
    slope = 10.0 ** np.array([-10.0, -8.0, -6.0, -4.0, -2.0, 0.0])
    at_cliff = where_it_vanishes(cliff, usable, cliff < 1e-5)
    on_slope = where_it_vanishes(slope, usable, slope < 1e-5)
    assert (at_cliff.layer, at_cliff.above, at_cliff.cliff) == (2, 3, True)
    assert (on_slope.layer, on_slope.cliff) == (0, False)
    assert on_slope.per_layer == pytest.approx(0.01)


def test_a_waking_branch_rises_and_a_noisy_one_does_not() -> None:
    waking = np.linspace(0.0, 9e-6, 10)
    noisy = 1e-6 * np.array([1.0, 1.2, 0.9, 1.1, 1.0, 0.8, 1.3, 1.0, 0.9, 1.1])
    rising = is_rising(np.stack([waking, noisy], axis=1))
    assert rising.tolist() == [True, False]
