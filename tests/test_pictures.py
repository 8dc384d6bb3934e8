"""Pictures are readable at any size, and what is bad has a colour of its own."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL.Image import Image

from gradwatch.history import History
from gradwatch.pictures import ABSENT, NON_FINITE, ZERO, heatmap, profile
from gradwatch.readings import FloatArray, FlowReading


def make_flow(norms: FloatArray | list[float], layers: tuple[str, ...] = ()) -> FlowReading:
    values = np.asarray(norms, dtype=np.float64)
    return FlowReading(
        layers=layers or tuple(f"net.{i}" for i in range(len(values))),
        grad_norm=values,
        weight_norm=np.ones(len(values)),
        has_grad=~np.isnan(values),
        frozen=np.zeros(len(values), dtype=bool),
    )


def share_of(picture: Image, colour: str) -> float:
    """Give the share of the picture's pixels that have exactly the colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return float((np.asarray(picture) == wanted).all(axis=2).mean())


def fill(history: History, steps: int, layers: int) -> FlowReading:
    rng = np.random.default_rng(0)
    for step in range(steps):
        flow = make_flow(10 ** rng.normal(-2, 0.3, layers))
        history.add(step, flow)
    return flow


@pytest.mark.parametrize(("layers", "steps"), [(1, 1), (12, 40), (401, 30), (1001, 3)])
def test_both_pictures_are_drawn_at_any_size(layers: int, steps: int) -> None:
    history = History()
    flow = fill(history, steps, layers)
    for picture in (heatmap(history), profile(flow, history)):
        assert picture.mode == "RGB"
        assert picture.width == 900
        assert 300 <= picture.height <= 800


def test_a_healthy_run_shows_none_of_the_bad_colours() -> None:
    history = History()
    fill(history, 20, 12)
    picture = heatmap(history)
    assert share_of(picture, NON_FINITE) == 0
    # The edges of letters hold a few pixels of any grey.
    assert share_of(picture, ABSENT) < 0.002


@pytest.mark.parametrize(("norm", "colour"), [(np.inf, NON_FINITE), (0.0, ZERO), (np.nan, ABSENT)])
def test_what_is_bad_fills_its_cells_in_its_own_colour(norm: float, colour: str) -> None:
    history = History()
    for step in range(10):
        history.add(step, make_flow([1.0, norm if step >= 5 else 0.5]))
    # A quarter of the cells, which take about half of the picture.
    assert 0.10 < share_of(heatmap(history), colour) < 0.17


def test_one_bad_layer_among_two_thousand_is_seen() -> None:
    history = History()
    norms = np.ones(2000)
    norms[1234] = np.inf
    for step in range(4):
        history.add(step, make_flow(norms))
    assert share_of(heatmap(history), NON_FINITE) > 0.0005


def test_the_profile_marks_layers_without_a_place_on_the_scale() -> None:
    history = History()
    flow = make_flow([1.0, np.inf, 0.5, 0.1])
    history.add(0, flow)
    assert share_of(profile(flow, history), NON_FINITE) > 0


def test_pictures_of_nothing_but_bad_numbers_can_be_drawn() -> None:
    history = History()
    flow = make_flow([np.inf, np.nan, 0.0])
    history.add(0, flow)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heatmap(history)
        profile(flow, history)


def test_an_empty_history_can_be_drawn() -> None:
    assert heatmap(History()).width == 900


def test_drawing_touches_no_global_state_of_matplotlib() -> None:
    program = """
import sys
import numpy as np
from gradwatch.history import History
from gradwatch.pictures import heatmap
assert "matplotlib" not in sys.modules
heatmap(History())
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""


def test_a_long_run_keeps_a_bounded_number_of_columns() -> None:
    history = History(columns=10)
    for step in range(1000):
        history.add(step, make_flow([float(step + 1)]))
    grid = history.grid()
    assert 5 <= len(history) <= 10
    assert np.diff(grid.steps).min() == np.diff(grid.steps).max()
    np.testing.assert_array_equal(grid.norms[0], np.array(grid.steps) + 1)


@pytest.mark.parametrize("bad_step", [0, 1, 57, 638, 999])
def test_thinning_forgets_no_bad_step(bad_step: int) -> None:
    history = History(columns=10)
    for step in range(1000):
        history.add(step, make_flow([np.inf if step == bad_step else 1.0]))
    grid = history.grid()
    column = np.flatnonzero(np.isinf(grid.norms[0]))
    assert len(column) == 1
    assert grid.steps[column[0]] <= bad_step < grid.steps[column[0]] + 1024


def test_two_optimizers_fill_one_column_of_a_step() -> None:
    history = History()
    for step in range(3):
        history.add(step, make_flow([1.0, 2.0], ("gen.0", "gen.1")))
        history.add(step, make_flow([3.0], ("disc.0",)))
    grid = history.grid()
    assert grid.layers == ("gen.0", "gen.1", "disc.0")
    np.testing.assert_array_equal(grid.norms, [[1.0] * 3, [2.0] * 3, [3.0] * 3])


def test_rows_follow_the_execution_order_once_it_is_known() -> None:
    history = History()
    history.add(0, make_flow([1.0, 2.0], ("b", "a")))
    history.add(1, make_flow([2.0, 1.0], ("a", "b")))
    assert history.grid().layers == ("a", "b")
    np.testing.assert_array_equal(history.grid().norms, [[2.0, 2.0], [1.0, 1.0]])
