"""The changes of a trial as intervals: where they stand, in which colour, and what is left out."""

from typing import Any

import numpy as np
import pytest

from gradwatch.errors import ConfigurationError
from gradwatch.fused.rows import COLUMNS
from gradwatch.history import History
from gradwatch.pictures import DARK, LIGHT, Theme, gallery, trials
from gradwatch.pictures.trials import MOST_ROWS, ROW
from gradwatch.tables import Cell, Table
from tests.pictures.kit import count_in_box, pixels, share_of

GREEN, ORANGE, BLUE = LIGHT.lines[2], LIGHT.lines[1], LIGHT.lines[0]


def make_row(verdict: str, ratio: float | None = None, **cells: Cell) -> tuple[Cell, ...]:
    own: dict[str, Any] = {
        "layer": "blocks.0.norm and 8 more", "layers": 9, "change": "RMSNorm by hand",
        "provider": "lab", "verdict": verdict, "after / before": ratio,
        "low": ratio and ratio - 0.02, "high": ratio and ratio + 0.02,
        "before (ms)": ratio and 40.0, "after (ms)": ratio and 40.0 * ratio,
    }  # fmt: skip
    return tuple((own | cells).get(name) for name in COLUMNS)


def make_table(*rows: tuple[Cell, ...]) -> Table:
    return Table(name="trials", title="Tried at step 10", step=10, columns=COLUMNS, rows=rows)


def middle_of(picture: Any, colour: tuple[int, int, int]) -> float:
    """Give the mean place of a colour across the picture's box, 0 to 1."""
    left, top, right, bottom = picture.box
    width, height = picture.image.size
    across = slice(round(left * width), round(right * width))
    box = pixels(picture)[round(top * height) : round(bottom * height), across]
    return float((box == np.asarray(colour)).all(axis=2).nonzero()[1].mean() / box.shape[1])


def test_what_is_faster_stands_left_of_the_line_and_what_is_slower_right() -> None:
    picture = trials(make_table(make_row("kept", 0.8), make_row("rolled back", 1.2)))
    line = middle_of(picture, LIGHT.text)
    assert middle_of(picture, GREEN) < line < middle_of(picture, ORANGE)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_each_verdict_has_its_colour_in_the_box_and_the_legend(theme: Theme) -> None:
    verdicts = ("kept", "rolled back", "replaced")
    picture = trials(make_table(*(make_row(each, 0.9) for each in verdicts)), theme=theme)
    for line in (2, 1, 0):
        inside = count_in_box(picture, theme.lines[line])
        everywhere = share_of(picture, theme.lines[line]) * picture.image.width
        assert inside > 20
        assert everywhere * picture.image.height > inside


def test_a_verdict_that_does_not_occur_is_not_in_the_legend() -> None:
    picture = trials(make_table(make_row("kept", 0.9)))
    assert share_of(picture, ORANGE) == share_of(picture, BLUE) == 0


def test_a_wider_interval_is_a_longer_bar() -> None:
    narrow, wide = (
        trials(make_table(make_row("kept", 0.9, low=0.9 - half, high=0.9 + half)))
        for half in (0.005, 0.09)
    )
    assert count_in_box(wide, GREEN) > 2 * count_in_box(narrow, GREEN)


def test_what_takes_many_times_longer_is_marked_at_the_edge_and_leaves_the_others_room() -> None:
    rows = [make_row("kept", 0.8), make_row("rolled back", 7.0)]
    picture = trials(make_table(*rows))
    assert middle_of(picture, ORANGE) > 0.95
    assert count_in_box(picture, ORANGE) > 20
    assert middle_of(picture, LIGHT.text) > 0.1


def test_changes_that_were_not_measured_have_no_row() -> None:
    rows = [make_row("refused"), make_row("kept", 0.9), make_row("rejected")]
    both = trials(make_table(*rows))
    alone = trials(make_table(rows[1]))
    assert both.image.height == alone.image.height


def test_of_very_many_changes_the_last_are_drawn() -> None:
    rows = [make_row("rolled back", 1.1)] * 50 + [make_row("kept", 0.9)]
    picture = trials(make_table(*rows))
    assert picture.image.height < ROW * (MOST_ROWS + 5)
    assert count_in_box(picture, GREEN) > 20


@pytest.mark.parametrize("odd", ["<b>&" * 80, "\n\t\x00", "層" * 200, ""])
def test_names_of_any_kind_fit(odd: str) -> None:
    row = make_row("kept", 0.9, layer=odd, change=odd, provider=odd)
    picture = trials(make_table(row))
    assert (picture.image.width, picture.columns) == (960, 0)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0, 0.0, "much", None])
def test_what_is_no_ratio_is_not_drawn(number: Cell) -> None:
    rows = [make_row("kept", 0.9), make_row("rolled back", 1.1, high=number)]
    picture = trials(make_table(*rows))
    assert count_in_box(picture, ORANGE) == 0


def test_the_gallery_hangs_it_only_where_something_was_measured() -> None:
    def hung(table: Table) -> list[str]:
        return [picture.name for picture in gallery(History(), tables={"trials": table})]

    assert hung(make_table(make_row("kept", 0.9))) == ["fused/chart"]
    assert hung(make_table(make_row("refused"))) == hung(make_table()) == []


def test_a_table_without_a_column_is_an_error() -> None:
    table = Table(name="trials", title="", step=0, columns=("layer",), rows=(("a",),))
    with pytest.raises(ConfigurationError, match="cannot be drawn without the column 'change'"):
        trials(table)
