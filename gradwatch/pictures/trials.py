"""Changes that were tried: what each did to the time of a step, and what became of it.

Shapes: N changes that were measured.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradwatch.pictures.canvas import Canvas, Layer, Rect
from gradwatch.pictures.columns import choose
from gradwatch.pictures.lettering import cut, shorten
from gradwatch.pictures.markers import draw_marker
from gradwatch.pictures.picture import (
    WIDTH,
    Entry,
    Picture,
    begin,
    box_of,
    horizontal_axis,
    legend,
)
from gradwatch.pictures.scale import Scale
from gradwatch.pictures.theme import LIGHT, Colour, Theme
from gradwatch.tables import Cell, Table

TITLE = "Changes that were tried"
CAPTION = (
    "Each row is a change: the mark is the step's time with it over the time without it, the bar"
    " its 99 % interval. What lies left of the line at 1 as a whole is faster; the rest was rolled"
    " back. What was not measured stands in the table with its reason."
)
COLUMNS = (
    "layer", "change", "provider", "verdict", "after / before", "low", "high", "before (ms)",
    "after (ms)", "peak memory (MiB)",
)  # fmt: skip
# Colour of the line, by its place among the theme's, and shape of each verdict.
LOOKS = {"kept": (2, "circle"), "rolled back": (1, "cross"), "replaced": (0, "diamond")}
OTHER = (4, "triangle")
LEFT, RIGHT, TOP, ROW, BELOW = 300, 266, 66, 34, 52
MOST_ROWS = 30
# What takes longer than this ends at the edge: it would make all others a dot.
LONGEST = 1.5
ROOM = 0.04
AXIS = "time of a step with it / without it (left of 1 is faster)"
RADIUS = 7.0
SMALL = 11


class Change(NamedTuple):
    """A change that was measured.

    Attributes:
        what: What was changed, and by whom.
        where: In which layers.
        verdict: What became of it.
        ratio: Time of a step with it over the time without it.
        low: Lower end of the interval of that.
        high: Upper end.
        figures: Times and memory in words.
    """

    what: str
    where: str
    verdict: str
    ratio: float
    low: float
    high: float
    figures: str


def can_draw(table: Table) -> bool:
    """Say whether a table of trials has a change that was measured.

    Args:
        table: Any table.
    """
    return set(COLUMNS) <= set(table.columns) and bool(_changes(table))


def trials(table: Table, *, theme: Theme = LIGHT) -> Picture:
    """Draw the changes that were measured, in the order they were tried.

    Args:
        table: Columns `COLUMNS` among others, a row a change. Of more than 30 measured ones the
            last 30 are drawn: all changes together stand at the end.
        theme: Colours.

    Raises:
        ConfigurationError: If a column is missing.
    """
    measured = _changes(table)
    shown = measured[-MOST_ROWS:]
    plot = Rect(LEFT, TOP, WIDTH - RIGHT, TOP + ROW * max(len(shown), 1))
    canvas, scale = begin(TITLE, plot.bottom + BELOW, theme), _scale(shown)
    canvas.text((14, 46), cut(_left_out(table, measured), plot.right), SMALL, colour=theme.muted)
    horizontal_axis(canvas, plot, scale.ticks(6), AXIS)
    _draw_grid(canvas, plot, scale, len(shown))
    for index, change in enumerate(shown):
        _draw(canvas, plot, scale, change, TOP + ROW * (index + 0.5))
    legend(canvas, WIDTH - 14, 28, _entries(shown, theme))
    return Picture("fused/chart", TITLE, CAPTION, canvas.image, box_of(canvas, plot))


def _changes(table: Table) -> list[Change]:
    rows = choose(table, COLUMNS)
    return [_change(row) for row in rows if all(_number(cell) > 0 for cell in row[4:7])]


def _change(row: tuple[Cell, ...]) -> Change:
    layer, kind, provider, verdict = (str(cell or "") for cell in row[:4])
    ratio, low, high, before, after, peak = (_number(cell) for cell in row[4:])
    figures = f"{before:,.4g} → {after:,.4g} ms" if before > 0 and after > 0 else ""
    figures += f", {peak:+,.3g} MiB" if np.isfinite(peak) else ""
    what = f"{kind} · {provider}" if provider else kind
    return Change(what, layer, verdict, ratio, low, high, figures)


def _number(cell: Cell) -> float:
    value = float(cell) if isinstance(cell, int | float) else float("nan")
    return value if np.isfinite(value) else float("nan")


def _left_out(table: Table, measured: list[Change]) -> str:
    rest = len(table.rows) - len(measured)
    told = [table.title, *([f"not measured: {rest}"] if rest else [])]
    hidden = len(measured) - MOST_ROWS
    return " · ".join(told + ([f"earlier and not shown: {hidden}"] if hidden > 0 else []))


def _scale(changes: list[Change]) -> Scale:
    low = min([1.0, *(change.low for change in changes)])
    high = min(max([1.0, *(change.high for change in changes)]), LONGEST)
    room = max(ROOM * (high - low), 0.01)
    return Scale(max(low - room, 0.0), max(high + room, low + 0.1))


def _draw_grid(canvas: Canvas, plot: Rect, scale: Scale, rows: int) -> None:
    theme = canvas.theme
    for tick in scale.ticks(6):
        x = plot.left + tick.place * plot.width
        canvas.stroke([(x, plot.top), (x, plot.bottom - 1)], theme.grid)
    for index in range(1, rows):
        y = plot.top + ROW * index
        canvas.stroke([(14, y), (WIDTH - 14, y)], theme.grid)
    canvas.frame(plot, theme.muted)
    same = _across(plot, scale, 1.0)
    canvas.stroke([(same, plot.top), (same, plot.bottom - 1)], theme.text, 2)


def _across(plot: Rect, scale: Scale, value: float) -> float:
    place = float(scale.places(np.asarray([value]))[0])
    return plot.left + min(max(place, 0.0), 1.0) * plot.width


def _draw(canvas: Canvas, plot: Rect, scale: Scale, change: Change, y: float) -> None:
    colour, kind = _look(change.verdict, canvas.theme)
    low, high, at = (_across(plot, scale, each) for each in (change.low, change.high, change.ratio))
    layer = Layer(Rect(plot.left, round(y) - 12, plot.right, round(y) + 12))
    layer.line([(low, y), (max(high, low + 1), y)], 4)
    for end in (low, high):
        layer.line([(end, y - 6), (end, y + 6)], 2)
    inside = min(max(at, plot.left + RADIUS), plot.right - RADIUS)
    draw_marker(layer, (inside, y), kind, RADIUS)
    canvas.put(layer, colour)
    muted, room = canvas.theme.muted, plot.left - 28
    canvas.text((14, y - 7), cut(change.what, room), anchor="lm")
    canvas.text((14, y + 8), shorten(change.where, room, SMALL), SMALL, colour=muted, anchor="lm")
    interval = f"{change.ratio:.3f} ({change.low:.3f} to {change.high:.3f})"
    canvas.text((plot.right + 12, y - 7), cut(interval, RIGHT - 26), anchor="lm")
    figures = f"{change.verdict}: {change.figures}" if change.figures else change.verdict
    canvas.text((plot.right + 12, y + 8), cut(figures, RIGHT - 26, SMALL), SMALL, colour=muted,
                anchor="lm")  # fmt: skip


def _look(verdict: str, theme: Theme) -> tuple[Colour, str]:
    line, kind = LOOKS.get(verdict, OTHER)
    return theme.lines[line], kind


def _entries(changes: list[Change], theme: Theme) -> list[Entry]:
    verdicts = sorted({change.verdict for change in changes})
    return [Entry(verdict, *_look(verdict, theme)) for verdict in verdicts]
