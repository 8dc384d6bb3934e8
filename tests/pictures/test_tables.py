"""The graph as a chain, and the roofline: drawn from tables alone."""

from collections.abc import Sequence

import numpy as np
import pytest

from gradwatch.errors import ConfigurationError
from gradwatch.history import History
from gradwatch.pictures import DARK, LIGHT, gallery, graph_chain, roofline
from gradwatch.pictures.graph import MOST_ROWS, ROW, TOP, Link, _runs
from gradwatch.tables import Cell, Table
from tests.pictures.kit import count_in_box, pixels, share_of

ORANGE, PINK = LIGHT.lines[1], LIGHT.lines[3]


def make_table(name: str, columns: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Table:
    return Table(name=name, title="What it is", step=0, columns=tuple(columns), rows=tuple(rows))


def make_graph(*marks: str) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (depth, f"net.{depth}", "addmm", mark, *((1, 9) if mark == "saturating" else (None, None)))
        for depth, mark in enumerate(marks)
    ]
    return make_table("graph", (*Link._fields,), rows)


def make_layers(*rows: tuple[str, float | None, float | None, str, float | None]) -> Table:
    columns = ("layer", "intensity (FLOP/B)", "achieved (GFLOP/s)", "verdict", "time (ms)")
    return make_table("roofline", ("rank", *columns), [(1, *row) for row in rows])


CEILINGS = make_table(
    "ceilings",
    ("name", "value", "unit"),
    [("bandwidth", 10.0, "GB/s"), ("float32", 0.1, "TFLOP/s"), ("launch", 5.0, "µs")],
)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
@pytest.mark.parametrize("rows", [0, 1, 2, 60, 500])
def test_a_chain_of_any_length_fits_a_screen_or_two(rows: int, theme: object) -> None:
    picture = graph_chain(make_graph(*[""] * rows), theme=DARK if theme is DARK else LIGHT)
    assert picture.image.height <= TOP + MOST_ROWS * ROW + 16
    assert picture.columns == 0


def test_each_mark_has_a_colour_and_a_legend_where_it_occurs() -> None:
    plain = graph_chain(make_graph("", "", ""))
    assert [share_of(plain, colour) for colour in (ORANGE, LIGHT.non_finite, PINK)] == [0, 0, 0]
    marked = graph_chain(make_graph("", "saturating", "in-place", "cut", ""))
    for colour in (ORANGE, LIGHT.non_finite, PINK):
        inside = count_in_box(marked, colour)
        assert inside > 20
        everywhere = share_of(marked, colour) * marked.image.width * marked.image.height
        assert round(everywhere) > inside


def test_the_line_ends_at_a_cut() -> None:
    def inked(*marks: str) -> int:
        picture = graph_chain(make_graph(*marks))
        x = round(picture.box[0] * picture.image.width) + 20
        between = pixels(picture)[TOP + 3 * ROW : TOP + 4 * ROW, x - 1 : x + 1]
        return int((between == np.asarray(LIGHT.muted)).all(axis=2).sum())

    assert inked("", "", "", "", "") > 2 * inked("", "cut", "", "", "")


def test_rows_of_one_number_are_one_run_whatever_their_words() -> None:
    runs = ["", "2", "", "2", "1", "", "1"]
    links = [Link(str(i), "net", "add, norm", "", run) for i, run in enumerate(runs)]
    assert _runs(links) == [(1, 3), (4, 6)]


def test_a_table_that_tells_no_runs_is_drawn_without_bars() -> None:
    table = make_graph("saturating", "", "saturating", "")
    rows = [row[:4] for row in table.rows]
    plain = graph_chain(make_table("graph", table.columns[:4], rows))
    column = pixels(plain)[:, round(plain.box[0] * plain.image.width) + 20]
    assert 0 < (column == np.asarray(ORANGE)).all(axis=1).sum() < ROW


def test_a_run_is_a_bar() -> None:
    together = graph_chain(make_graph("saturating", "", "saturating", ""))
    column = pixels(together)[:, round(together.box[0] * together.image.width) + 20]
    assert (column == np.asarray(ORANGE)).all(axis=1).sum() >= 2 * ROW


def test_marked_rows_of_a_long_chain_are_kept() -> None:
    marks = ["saturating" if 200 <= row < 204 else "" for row in range(400)]
    picture = graph_chain(make_graph(*marks))
    column = pixels(picture)[:, round(picture.box[0] * picture.image.width) + 20]
    run = (column == np.asarray(ORANGE)).all(axis=1).sum()
    assert run >= 3 * ROW


def test_a_table_without_a_column_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"'graph' cannot .* 'mark'"):
        graph_chain(make_table("graph", ("depth", "layer", "operation"), [(0, "a", "b")]))
    with pytest.raises(ConfigurationError, match="it has layer"):
        roofline(make_table("roofline", ("layer",), [("a",)]), CEILINGS)


def test_an_unknown_mark_and_empty_cells_are_drawn() -> None:
    rows = [(None, None, None, None), (1, "$x_1$", "a\nb", "odd")]
    table = make_table("graph", ("depth", "layer", "operation", "mark"), rows)
    assert graph_chain(table).image.height == TOP + 2 * ROW + 16


def test_a_layer_stands_where_its_numbers_say() -> None:
    rows = [
        ("low", 0.1, 1.0, "bandwidth-bound", 1.0),
        ("high", 100.0, 90.0, "compute-bound", 1.0),
    ]
    picture = roofline(make_layers(*rows), CEILINGS)
    places = []
    for colour in LIGHT.lines[:2]:
        found = (pixels(picture)[62:462, 84:936] == np.asarray(colour)).all(axis=2)
        down, across = np.nonzero(found)
        places.append((across.mean(), down.mean()))
    assert places[0][0] < places[1][0]
    assert places[0][1] > places[1][1]


def test_a_layer_on_the_bandwidth_ceiling_lies_on_its_line() -> None:
    alone = roofline(make_layers(("a", 1.0, 10.0, "bandwidth-bound", 1.0)), CEILINGS)
    area = pixels(alone)[62:462, 84:936]
    dot = np.argwhere((area == np.asarray(LIGHT.lines[0])).all(axis=2)).mean(axis=0)
    line = np.argwhere((area == np.asarray(LIGHT.text)).all(axis=2))
    assert np.abs(line - dot).sum(axis=1).min() < 20


def test_layers_without_arithmetic_are_counted_and_not_drawn() -> None:
    rows = [("view", 0.0, 0.0, "waiting", 1.0), ("none", None, None, "waiting", None)]
    picture = roofline(make_layers(*rows), CEILINGS)
    assert count_in_box(picture, LIGHT.lines[0]) == 0


def test_tables_without_rows_can_be_drawn_and_are_left_out_of_the_gallery() -> None:
    empty = make_table("ceilings", ("name", "value", "unit"), [])
    assert roofline(make_layers(), empty).image.width == 960
    tables = {"roofline": make_layers(), "ceilings": empty, "graph": make_graph()}
    assert gallery(History(), tables=tables) == []


def test_the_gallery_draws_the_tables_it_knows() -> None:
    layers = make_layers(("a", 1.0, 5.0, "bandwidth-bound", 1.0))
    tables = {
        "roofline": layers,
        "ceilings": CEILINGS,
        "graph": make_graph("", "cut"),
        "trials": make_table("trials", ("layer",), [("a",)]),
    }
    names = [picture.name for picture in gallery(History(), tables=tables)]
    assert names == ["graph/chain", "roofline/chart"]
