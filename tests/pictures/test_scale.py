"""Axes hold what is drawn, and their ticks are round, few and inside."""

import numpy as np
import pytest

from gradwatch.pictures.scale import (
    Scale,
    linear_scale,
    log_scale,
    round_values,
    short_number,
    step_ticks,
)


@pytest.mark.parametrize("low", [1e-300, 1e-45, 1e-12, 0.3, 1.0, 7e20, 1e300])
@pytest.mark.parametrize("factor", [1.0, 1.001, 3.0, 1e5])
def test_a_logarithmic_axis_holds_its_values_with_ticks_inside(low: float, factor: float) -> None:
    values = np.array([low, np.nan, np.inf, 0.0, -1.0, low * factor])
    scale = log_scale(values)
    places = scale.places(values)
    assert np.isnan(places[1:5]).all()
    ticks = scale.ticks()
    if low >= 1e-45:
        assert 0 < places[0] <= places[-1] < 1
        assert 1 <= len(ticks) <= 9
    assert all(-1e-9 <= place <= 1 + 1e-9 for place, _ in ticks)


@pytest.mark.parametrize("values", [[], [np.nan], [0.0], [5.0, 5.0], [-3.0, 4.0], [1e-9], [1e12]])
def test_a_linear_axis_holds_its_values_and_zero(values: list[float]) -> None:
    scale = linear_scale(np.array(values))
    places = scale.places(np.array([0.0, *values]))
    known = places[np.isfinite(places)]
    assert ((known >= 0) & (known <= 1)).all()
    assert len(scale.ticks()) >= 2


def test_ticks_are_round_numbers() -> None:
    assert [label for _, label in Scale(0, 97).ticks(6)] == ["0", "20", "40", "60", "80"]
    assert [label for _, label in Scale(1, 40, logarithmic=True).ticks()] == [
        "1", "2", "5", "10", "20",
    ]  # fmt: skip
    labels = [label for _, label in Scale(1e-8, 1e2, logarithmic=True).ticks(6)]
    assert labels == ["10⁻⁸", "10⁻⁶", "10⁻⁴", "10⁻²", "10⁰", "10²"]


def test_steps_are_marked_at_their_bins() -> None:
    first, last = np.array([0, 100, 200, 300]), np.array([99, 199, 299, 399])
    ticks = step_ticks(first, last, most=3)
    assert [(place, label) for place, label in ticks] == [(0.125, "0"), (0.625, "200")]


def test_a_step_between_two_records_is_marked_between_their_bins() -> None:
    recorded = np.array([0, 49, 99, 149])
    marked = {label: round(place, 3) for place, label in step_ticks(recorded, recorded, most=4)}
    assert marked == {"0": 0.125, "50": 0.38, "100": 0.63}


def test_one_step_is_marked_in_the_middle() -> None:
    assert step_ticks(np.array([7]), np.array([7])) == [(0.5, "7")]
    assert step_ticks(np.empty(0, np.int64), np.empty(0, np.int64)) == []


def test_round_values_reach_both_ends() -> None:
    assert round_values(0.0, 1.0, 3) == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1500.0, "1500"), (65536.0, "65.5k"), (-2e7, "−20M"), (3e-5, "3e−5"),
        (0.25, "0.25"),
    ],
)  # fmt: skip
def test_numbers_are_written_in_few_signs(value: float, text: str) -> None:
    assert short_number(value) == text
