"""The history is bounded, keeps extremes, and forgets no mark."""

import tracemalloc

import numpy as np
import pytest

from gradwatch.binning import Axis
from gradwatch.history import History
from tests.pictures.kit import make_record


def test_bins_hold_the_extremes_of_their_steps() -> None:
    history = History(columns=4)
    values = np.random.default_rng(0).random(100)
    for step, value in enumerate(values):
        history.add(make_record(step, [value], scalars={"grad/norm": value}))
    bins, scalar = history.layers(), history.scalar("grad/norm")
    assert scalar is not None
    assert bins.first.tolist() == scalar.first.tolist()
    for column, (first, last) in enumerate(zip(bins.first, bins.last, strict=True)):
        inside = values[first : last + 1]
        np.testing.assert_allclose(bins.low[0, column], inside.min(), rtol=1e-6)
        np.testing.assert_allclose(bins.high[0, column], inside.max(), rtol=1e-6)
        assert scalar.low[column] == inside.min()
        assert scalar.high[column] == inside.max()
        assert scalar.latest[column] == inside[-1]


@pytest.mark.parametrize("columns", [2, 3, 10, 400])
@pytest.mark.parametrize("steps", [1, 7, 999])
def test_bins_follow_on_one_another_and_miss_no_step(columns: int, steps: int) -> None:
    history = History(columns)
    for step in range(0, 5 * steps, 5):
        history.add(make_record(step, [1.0]))
    bins = history.layers()
    assert len(bins.first) <= columns + columns % 2
    assert bins.first[0] == 0
    assert bins.last[-1] == 5 * (steps - 1)
    np.testing.assert_array_equal(bins.first[1:], bins.last[:-1] + 5)


def test_a_long_run_uses_at_least_half_of_its_columns() -> None:
    history = History(columns=10)
    for step in range(1000):
        history.add(make_record(step, [1.0]))
    assert 5 <= len(history.layers().first) <= 10


@pytest.mark.parametrize("bad_step", [0, 1, 57, 638, 999])
@pytest.mark.parametrize(("value", "mark"), [(np.inf, "bad"), (0.0, "zero")])
def test_thinning_forgets_no_mark(bad_step: int, value: float, mark: str) -> None:
    history = History(columns=10)
    for step in range(1000):
        history.add(make_record(step, [value if step == bad_step else 1.0]))
    bins = history.layers()
    [column] = np.flatnonzero(getattr(bins, mark)[0])
    assert bins.first[column] <= bad_step <= bins.last[column]
    other = bins.zero if mark == "bad" else bins.bad
    assert not other.any()


def test_a_non_finite_value_is_no_extreme() -> None:
    history = History(columns=2)
    for step, value in enumerate((1.0, np.inf, np.nan, np.inf)):
        history.add(make_record(step, [value]))
    bins = history.layers()
    assert bins.high.tolist()[0][0] == 1.0
    assert np.isnan(bins.high[0, 1])
    assert bins.bad.tolist() == [[True, True]]


@pytest.mark.parametrize("value", [1e-60, 1e-42, 3.0, 1e39, 1e300])
def test_doubles_beyond_float32_are_neither_zero_nor_infinite(value: float) -> None:
    history = History()
    history.add(make_record(0, [value]))
    bins = history.layers()
    assert 0 < bins.low[0, 0] <= bins.high[0, 0] < np.inf
    assert not bins.bad.any()
    assert not bins.zero.any()
    assert bins.latest.tolist() == [value]


def test_two_optimizers_fill_one_bin_of_a_step() -> None:
    history = History()
    for step in range(3):
        history.add(make_record(step, [1.0, 2.0], ("gen.0", "gen.1"), scalars={"grad/norm/a": 1}))
        history.add(make_record(step, [3.0], ("disc.0",), scalars={"grad/norm/b": 2}))
    bins, scalar = history.layers(), history.scalar("grad/norm/b")
    assert bins.layers == ("gen.0", "gen.1", "disc.0")
    np.testing.assert_array_equal(bins.low, [[1.0] * 3, [2.0] * 3, [3.0] * 3])
    assert scalar is not None
    assert scalar.low.tolist() == [2.0] * 3


def test_two_optimizers_with_as_many_layers_keep_their_places() -> None:
    history = History()
    for step in range(4):
        history.add(make_record(step, [1.0], ("gen",)))
        history.add(make_record(step, [1.0], ("disc",)))
        assert history.layers().layers == ("gen", "disc")


def test_rows_follow_the_execution_order_once_it_is_known() -> None:
    history = History()
    history.add(make_record(0, [1.0, 2.0], ("b", "a")))
    history.add(make_record(1, [2.0, 1.0], ("a", "b")))
    bins = history.layers()
    assert bins.layers == ("a", "b")
    np.testing.assert_array_equal(bins.low, [[2.0, 2.0], [1.0, 1.0]])
    assert bins.latest.tolist() == [2.0, 1.0]


def test_a_layer_that_comes_late_has_nothing_before() -> None:
    history = History()
    history.add(make_record(0, [1.0], ("a",)))
    history.add(make_record(1, [1.0, 5.0], ("a", "new")))
    bins = history.layers()
    assert bins.layers == ("a", "new")
    np.testing.assert_array_equal(bins.low, [[1.0, 1.0], [np.nan, 5.0]])
    assert not bins.bad.any()


def test_a_resumed_run_goes_on_behind_what_it_repeats() -> None:
    history = History()
    for step in (0, 1, 2, 1, 2, 3):
        history.add(make_record(step, [float(step)]))
    assert history.layers().first.tolist() == [0, 1, 2, 1, 2, 3]


def test_what_was_never_recorded_is_absent() -> None:
    history = History()
    history.add(make_record(0, [1.0], scalars={"grad/norm": 1.0}))
    assert history.scalar("lr/snr") is None
    assert history.layers("act_grad").layers == ()
    assert history.layers("act_grad").low.shape == (0, 0)
    assert history.keys() == ("grad/norm",)


def test_a_scalar_that_comes_and_goes_leaves_gaps() -> None:
    history = History()
    for step in range(3):
        history.add(make_record(step, scalars={"a": 1.0, **({"b": -2.0} if step == 1 else {})}))
    scalar = history.scalar("b")
    assert scalar is not None
    np.testing.assert_array_equal(scalar.low, [np.nan, -2.0, np.nan])


def test_two_thousand_layers_stay_within_twenty_megabytes() -> None:
    history, norms = History(), np.ones(2000)
    tracemalloc.start()
    try:
        for step in range(900):
            history.add(make_record(step, norms, ratios=norms))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 20e6
    assert history.layers().low.shape == (2000, 225)


def test_an_unknown_family_is_an_error() -> None:
    with pytest.raises(KeyError):
        History().layers("grad")


def test_an_axis_counts_a_step_once_however_often_it_is_opened() -> None:
    axis = Axis(4)
    assert [axis.open(step) for step in (7, 7, 7, 8)] == [0, 0, 0, 1]
    assert [step.tolist() for step in axis.steps()] == [[7, 8], [7, 8]]
