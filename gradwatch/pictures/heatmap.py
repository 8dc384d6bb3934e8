"""Layers × steps: log10 of the gradient norm in colours.

Shapes: L layers, C bins of steps, R rows drawn (R = L up to 400 layers).
"""

from typing import NamedTuple

import numpy as np
from PIL import Image

from gradwatch.history import History, LayerBins
from gradwatch.pictures.canvas import Canvas, Rect
from gradwatch.pictures.lettering import shorten, text_width
from gradwatch.pictures.outline import Group, outline
from gradwatch.pictures.picture import (
    WIDTH,
    Entry,
    Picture,
    begin,
    box_of,
    horizontal_axis,
    legend,
)
from gradwatch.pictures.scale import Scale, step_ticks
from gradwatch.pictures.statistics import middles
from gradwatch.pictures.theme import LIGHT, NON_FINITE, ZERO, Theme, viridis
from gradwatch.readings import BoolArray, FloatArray

TITLE = "Gradient norm of every layer over the run"
CAPTION = (
    "Each row is a layer, the first to run at the top; dark is a weak gradient, bright a strong"
    " one: colours that fade from the bottom to the top show where the gradient dies."
)
MOST_ROWS = 400
TALLEST = 825
TOP = 44
BELOW = 48
LEAST_ROW_FOR_A_NAME = 11
MOST_NAME_PIXELS = 250
# Narrower scales would paint the noise of a healthy run in all colours.
LEAST_DECADES = 3.0


class Cells(NamedTuple):
    """What the heatmap colours.

    Attributes:
        logs: (R, C) log10 of the gradient norm; NaN where there is none on the scale.
        bad: (R, C) NaN or Inf was seen.
        zero: (R, C) nothing but exact zeros.
        rows: First and last layer of each row.
    """

    logs: FloatArray
    bad: BoolArray
    zero: BoolArray
    rows: tuple[tuple[int, int], ...]


def heatmap(history: History, *, theme: Theme = LIGHT) -> Picture:
    """Draw log10 of the gradient norm, a row a layer in execution order, a column a bin of steps.

    Beyond 400 layers neighbours share a row, and the worst of them shows: non-finite before
    zero before the mean of the logarithms.

    Args:
        history: The run so far; may be empty.
        theme: Colours.

    Returns:
        The picture; non-finite norms, exact zeros and missing gradients each have a colour
        outside the scale, named in the legend where they occur.
    """
    bins = history.layers()
    cells = pool(bins)
    height = _plot_height(len(cells.rows))
    canvas = begin(TITLE, TOP + height + BELOW, theme)
    labels = _labels(bins.layers, cells, height)
    widest = max((text_width(label.label) for label in labels), default=0)
    left = 46 + min(max(widest, 30), MOST_NAME_PIXELS)
    rect = Rect(left, TOP, WIDTH - 92, TOP + height)
    limits = colour_limits(cells.logs)
    _paint(canvas, rect, cells, limits)
    _name_rows(canvas, rect, labels, len(cells.rows))
    count = f"layer, in execution order ({len(bins.layers):,} in all)"
    canvas.text_upwards((16, TOP + height / 2), count)
    horizontal_axis(canvas, rect, step_ticks(bins.first, bins.last), "step")
    _colour_bar(canvas, rect, limits)
    return Picture(
        "flow/heatmap", TITLE, CAPTION, canvas.image, box_of(canvas, rect), cells.rows,
        len(bins.first),
    )  # fmt: skip


def pool(bins: LayerBins, most: int = MOST_ROWS) -> Cells:
    """Give each row of the picture its colour's number, joining neighbouring layers if need be.

    Args:
        bins: (L, C) gradient norms.
        most: Rows at most.
    """
    count, size = len(bins.layers), max(-(-len(bins.layers) // most), 1)
    logs, zero = middles(bins), (bins.high == 0) & ~bins.bad
    starts = range(0, count, size)
    rows = tuple((first, min(first + size, count) - 1) for first in starts)
    if size == 1:
        return Cells(logs, bins.bad, zero, rows)
    seen = np.add.reduceat(np.isfinite(logs), starts, axis=0, dtype=np.int64)
    total = np.add.reduceat(np.nan_to_num(logs), starts, axis=0)
    mean = np.where(seen > 0, total / np.maximum(seen, 1), np.nan)
    bad, zero = (np.logical_or.reduceat(mark, starts, axis=0) for mark in (bins.bad, zero))
    return Cells(mean, bad, zero & ~bad, rows)


def colour_limits(logs: FloatArray) -> tuple[float, float]:
    """Give the ends of the colour scale in decades; the strongest gradients are the bright end."""
    usable = logs[np.isfinite(logs)]
    if not usable.size:
        return -LEAST_DECADES, 0.0
    low, high = np.percentile(usable, [0.5, 99.5])
    return float(min(low, high - LEAST_DECADES)), float(high)


def _plot_height(rows: int) -> int:
    """Give each row whole pixels, as many as go into a picture that fits a screen."""
    if rows * LEAST_ROW_FOR_A_NAME <= TALLEST:
        return max(180, min(28 * rows, 420), LEAST_ROW_FOR_A_NAME * rows)
    return rows * max(round(800 / rows), 1)


def _paint(canvas: Canvas, rect: Rect, cells: Cells, limits: tuple[float, float]) -> None:
    theme, (low, high) = canvas.theme, limits
    absent = np.isnan(cells.logs) & ~cells.bad & ~cells.zero
    colours = viridis((np.nan_to_num(cells.logs) - low) / (high - low))
    entries = []
    for mark, colour, label in (
        (absent, theme.absent, "no gradient"),
        (cells.zero, ZERO, "exactly 0"),
        (cells.bad, NON_FINITE, "NaN or Inf"),
    ):
        colours[mark] = colour
        if mark.any():
            entries.append(Entry(label, colour))
    if colours.size:
        grid = Image.fromarray(colours)
        size = (rect.width, rect.height)
        canvas.image.paste(grid.resize(size, Image.Resampling.NEAREST), rect[:2])
    else:
        middle = ((rect.left + rect.right) / 2, (rect.top + rect.bottom) / 2)
        canvas.text(middle, "no gradient has been recorded yet", colour=theme.muted, anchor="mm")
    canvas.frame(rect, theme.muted)
    legend(canvas, rect.right, 28, entries)


def _labels(layers: tuple[str, ...], cells: Cells, height: int) -> list[Group]:
    """Name every row that is tall enough for its name, else groups of them."""
    if len(cells.rows) * LEAST_ROW_FOR_A_NAME <= height:
        return [Group(row, row + 1, layers[first]) for row, (first, _) in enumerate(cells.rows)]
    size = cells.rows[0][1] + 1
    groups = outline(layers)
    return [Group(first // size, -(-stop // size), label) for first, stop, label in groups]


def _name_rows(canvas: Canvas, rect: Rect, labels: list[Group], rows: int) -> None:
    row_height = rect.height / max(rows, 1)
    free = np.ones(rect.height + LEAST_ROW_FOR_A_NAME, dtype=np.bool_)
    for first, stop, label in sorted(labels, key=lambda group: group.first - group.stop):
        top, bottom = rect.top + first * row_height, rect.top + stop * row_height
        _bracket(canvas, rect.left - 5, top, bottom, single=stop - first == 1)
        middle = (top + bottom) / 2
        place = round(middle) - rect.top
        taken = slice(place, place + LEAST_ROW_FOR_A_NAME - 1)
        # The biggest groups come first; a small one between two big ones may stay unnamed.
        if free[taken].all():
            free[taken] = False
            size = 12 if row_height >= 13 or stop - first > 1 else 10  # noqa: PLR2004 - pixels
            name = shorten(label, rect.left - 40, size)
            canvas.text((rect.left - 11, middle), name, size, anchor="rm")


def _bracket(canvas: Canvas, x: float, top: float, bottom: float, *, single: bool) -> None:
    colour = canvas.theme.muted
    if single:
        middle = (top + bottom) / 2
        canvas.stroke([(x, middle), (x + 3, middle)], colour)
        return
    canvas.stroke([(x + 3, top + 1), (x, top + 1), (x, bottom - 2), (x + 3, bottom - 2)], colour)


def _colour_bar(canvas: Canvas, rect: Rect, limits: tuple[float, float]) -> None:
    bar = Rect(rect.right + 16, rect.top, rect.right + 30, rect.bottom)
    places = np.linspace(1, 0, bar.height)[:, None]
    ramp = Image.fromarray(np.repeat(viridis(places), bar.width, axis=1))
    canvas.image.paste(ramp, bar[:2])
    canvas.frame(bar, canvas.theme.muted)
    scale = Scale(10.0 ** limits[0], 10.0 ** limits[1], logarithmic=True)
    for place, label in scale.ticks(10):
        y = bar.bottom - place * bar.height
        canvas.stroke([(bar.right, y), (bar.right + 3, y)], canvas.theme.muted)
        canvas.text((bar.right + 5, y), label, 11, anchor="lm")
    canvas.text_upwards((WIDTH - 12, (bar.top + bar.bottom) / 2), "gradient norm (log10 scale)")
