"""The heatmap is readable at any size, and what is bad has a colour of its own, where it is."""

import warnings

import numpy as np
import pytest

from gradwatch.history import History
from gradwatch.pictures import DARK, LIGHT, Picture, Theme, heatmap
from gradwatch.pictures.heatmap import LEAST_DECADES, colour_limits, pool
from gradwatch.pictures.theme import NON_FINITE, ZERO, viridis
from tests.pictures.kit import (
    colour_at,
    count_in_box,
    make_blocks,
    make_history,
    make_record,
    share_of,
)


def _box_pixels(picture: Picture) -> float:
    left, top, right, bottom = picture.box
    return (right - left) * (bottom - top) * picture.image.width * picture.image.height


@pytest.mark.parametrize(("layers", "steps"), [(1, 1), (3, 5), (12, 40), (75, 9), (401, 3)])
def test_it_is_drawn_at_any_size_and_fits_a_screen(layers: int, steps: int) -> None:
    picture = heatmap(make_history(steps, layers))
    assert picture.image.mode == "RGB"
    assert picture.image.width == 960
    assert 180 < picture.image.height < 960
    assert picture.columns == steps


def test_an_empty_history_says_so() -> None:
    picture = heatmap(History())
    assert picture.rows == ()
    assert picture.columns == 0
    assert count_in_box(picture, LIGHT.ground) < 0.995 * _box_pixels(picture)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
@pytest.mark.parametrize("layers", [3, 12, 75, 390])
def test_each_cell_has_its_colour_at_its_place_in_the_box(layers: int, theme: Theme) -> None:
    history, columns = History(), 7
    logs = np.random.default_rng(0).uniform(-5, 0, (columns, layers))
    logs[0, 0], logs[0, 1] = -5, 0
    marks = {(1, 2): (np.inf, NON_FINITE), (3, 1): (0.0, ZERO), (5, 0): (np.nan, theme.absent)}
    for step in range(columns):
        norms = 10 ** logs[step]
        for (column, layer), (value, _) in marks.items():
            norms[layer] = value if column == step else norms[layer]
        history.add(make_record(step, norms))
    picture = heatmap(history, theme=theme)
    low, high = colour_limits(pool(history.layers()).logs)
    for column in range(columns):
        for layer in range(0, layers, max(layers // 12, 1)):
            expected = viridis((logs[column, layer] - low) / (high - low))
            known = marks.get((column, layer))
            found = colour_at(picture, (column + 0.5) / columns, (layer + 0.5) / layers)
            wanted = expected if known is None else known[1]
            np.testing.assert_allclose(found, wanted, atol=0 if known else 2)


def test_a_healthy_run_shows_none_of_the_bad_colours() -> None:
    picture = heatmap(make_history(20, 12))
    assert share_of(picture, NON_FINITE) == 0
    assert count_in_box(picture, ZERO) == 0
    assert count_in_box(picture, LIGHT.absent) == 0


def test_the_legend_names_only_what_occurs() -> None:
    history = History()
    history.add(make_record(0, [1.0, np.inf]))
    picture = heatmap(history)
    outside = round(share_of(picture, NON_FINITE) * picture.image.width * picture.image.height)
    assert outside > count_in_box(picture, NON_FINITE)
    assert share_of(picture, LIGHT.absent) == 0


def test_one_bad_layer_among_two_thousand_is_seen() -> None:
    history, norms = History(), np.ones(2000)
    norms[1234] = np.inf
    for step in range(4):
        history.add(make_record(step, norms))
    picture = heatmap(history)
    assert len(picture.rows) == 400
    [row] = [row for row, (first, last) in enumerate(picture.rows) if first <= 1234 <= last]
    assert colour_at(picture, 0.5, (row + 0.5) / 400) == NON_FINITE
    assert count_in_box(picture, NON_FINITE) == pytest.approx(2 * 700, rel=0.15)


def test_a_bad_step_among_a_thousand_is_seen() -> None:
    history = History()
    for step in range(1000):
        history.add(make_record(step, [1.0, np.inf if step == 777 else 1.0]))
    picture, bins = heatmap(history), history.layers()
    [column] = np.flatnonzero((bins.first <= 777) & (bins.last >= 777))
    assert colour_at(picture, (column + 0.5) / picture.columns, 0.75) == NON_FINITE


def test_rows_hold_every_layer_once() -> None:
    for layers in (1, 400, 401, 799, 2000):
        rows = pool(make_history(1, layers).layers()).rows
        assert len(rows) <= 400
        inside = [layer for first, last in rows for layer in range(first, last + 1)]
        assert inside == list(range(layers))


def test_zero_for_a_part_of_a_bin_is_not_painted_as_dead() -> None:
    history = History(columns=2)
    for step, norm in enumerate((0.0, 1.0, 0.0, 0.0)):
        history.add(make_record(step, [norm]))
    assert pool(history.layers()).zero.tolist() == [[False, True]]


def test_nothing_but_bad_numbers_can_be_drawn() -> None:
    history = History()
    history.add(make_record(0, [np.inf, np.nan, 0.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = heatmap(history)
    thirds = [colour_at(picture, 0.5, (row + 0.5) / 3) for row in range(3)]
    assert thirds == [NON_FINITE, LIGHT.absent, ZERO]


def test_a_narrow_spread_is_not_blown_up_into_all_colours() -> None:
    low, high = colour_limits(np.array([-1.0, -1.01]))
    assert high == pytest.approx(-1.0, abs=1e-3)
    assert high - low == pytest.approx(LEAST_DECADES)


@pytest.mark.parametrize("name", ["$x_1$", "a\nb", "слой", "层", "", "x" * 500, "\udcff", "<b>&"])
def test_odd_names_are_shown_literally_and_never_raise(name: str) -> None:
    history = History()
    history.add(make_record(0, [1.0, 2.0], [name, "net"]))
    picture = heatmap(history)
    assert picture.image.width == 960
    assert colour_at(picture, 0.5, 0.5) != LIGHT.ground


def test_a_formula_in_a_name_is_not_set_as_one() -> None:
    pictures = []
    for name in ("$x_1$", "x1"):
        history = History()
        history.add(make_record(0, [1.0], [name]))
        pictures.append(heatmap(history))
    # Two dollars and a line more: the margin is wider, as the name takes more room.
    assert pictures[0].box[0] > pictures[1].box[0]


def test_groups_are_named_where_rows_are_too_low_for_names() -> None:
    few, many = (heatmap(make_history(2, make_blocks(24, parts))) for parts in (2, 16))
    for picture in (few, many):
        left = round(picture.box[0] * picture.image.width)
        margin = np.asarray(picture.image)[:, 40 : left - 12]
        inked = (margin != np.asarray(LIGHT.ground)).any(axis=(1, 2))
        lines = int((np.diff(inked.astype(int)) == 1).sum())
        assert lines >= 20
