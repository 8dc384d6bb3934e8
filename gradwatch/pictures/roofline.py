"""The roofline: what each layer reaches under the machine's measured ceilings.

Williams, Waterman & Patterson 2009, "Roofline: an insightful visual performance model".
Shapes: N layers with a time, an intensity and a speed.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradwatch.pictures.canvas import Canvas, Rect
from gradwatch.pictures.columns import choose
from gradwatch.pictures.lettering import shorten, text_width
from gradwatch.pictures.panel import Panel
from gradwatch.pictures.picture import (
    WIDTH,
    Entry,
    Picture,
    begin,
    box_of,
    horizontal_axis,
    legend,
)
from gradwatch.pictures.scale import Scale, log_scale
from gradwatch.pictures.theme import LIGHT, Theme
from gradwatch.readings import FloatArray
from gradwatch.tables import Cell, Table

TITLE = "Roofline"
CAPTION = (
    "Each dot is a layer, the bigger the longer it takes; the slope is memory bandwidth, the"
    " flats are arithmetic. Dots near the slope are bound by memory: fuse there. Far below both"
    " ceilings the time goes into launches or waiting."
)
COLUMNS = ("layer", "intensity (FLOP/B)", "achieved (GFLOP/s)", "verdict", "time (ms)")
KINDS = ("circle", "square", "triangle", "diamond", "cross")
MOST_NAMED = 6
TO_GIGA = {"GB/s": 1.0, "TB/s": 1e3, "MB/s": 1e-3, "GFLOP/s": 1.0, "TFLOP/s": 1e3, "MFLOP/s": 1e-3}
PLOT = Rect(84, 62, WIDTH - 24, 62 + 400)


class Dots(NamedTuple):
    """The layers that have a place on the picture.

    Attributes:
        names: (N,) layers.
        intensity: (N,) FLOP/B.
        achieved: (N,) GFLOP/s.
        verdicts: (N,) what bounds each.
        milliseconds: (N,) time of each; NaN where unknown.
    """

    names: tuple[str, ...]
    intensity: FloatArray
    achieved: FloatArray
    verdicts: tuple[str, ...]
    milliseconds: FloatArray


class Ceiling(NamedTuple):
    """A limit of the machine.

    Attributes:
        label: Name with figure and unit.
        giga: GB/s or GFLOP/s.
        is_bandwidth: Which of the two.
    """

    label: str
    giga: float
    is_bandwidth: bool


def roofline(layers: Table, ceilings: Table, *, theme: Theme = LIGHT) -> Picture:
    """Draw layers under the machine's ceilings, both axes logarithmic.

    Args:
        layers: Columns `COLUMNS` among others, a row a layer. Rows without a positive intensity
            and speed have no place on the picture; their number is told.
        ceilings: Rows of name, value and unit: GB/s for bandwidth, GFLOP/s for arithmetic.
        theme: Colours.

    Raises:
        ConfigurationError: If a column is missing.
    """
    dots, limits = _dots(layers), list(_ceilings(ceilings))
    canvas = begin(TITLE, PLOT.bottom + 48, theme)
    across, up = _scales(dots, limits)
    panel = Panel(canvas, PLOT, up, "achieved, GFLOP/s")
    horizontal_axis(canvas, PLOT, across.ticks(9), "arithmetic intensity, FLOP per byte moved")
    _draw_ceilings(panel, across, limits)
    entries = _draw_dots(panel, across, dots)
    legend(canvas, PLOT.right, 28, entries)
    left_out = len(layers.rows) - len(dots.names)
    if left_out:
        text = f"{left_out} layer(s) without arithmetic are not shown"
        canvas.text((14, 48), text, 11, colour=theme.muted)
    _name_dots(canvas, across, up, dots)
    return Picture("roofline/chart", TITLE, CAPTION, canvas.image, box_of(canvas, PLOT))


def _dots(layers: Table) -> Dots:
    rows = choose(layers, COLUMNS)
    shown = [row for row in rows if _number(row[1]) > 0 and _number(row[2]) > 0]
    intensity, achieved, milliseconds = (
        np.asarray([_number(row[at]) for row in shown]) for at in (1, 2, 4)
    )
    names, verdicts = (tuple(str(row[at] or "") for row in shown) for at in (0, 3))
    return Dots(names, intensity, achieved, verdicts, milliseconds)


def _number(cell: Cell) -> float:
    value = float(cell) if isinstance(cell, int | float) else float("nan")
    return value if np.isfinite(value) else float("nan")


def _ceilings(table: Table) -> Iterator[Ceiling]:
    for name, value, unit in choose(table, ("name", "value", "unit")):
        factor = TO_GIGA.get(str(unit))
        if factor is not None and _number(value) > 0:
            label = f"{name}: {_number(value):.4g} {unit}"
            yield Ceiling(label, _number(value) * factor, is_bandwidth=str(unit).endswith("B/s"))


def _scales(dots: Dots, limits: list[Ceiling]) -> tuple[Scale, Scale]:
    speeds = np.asarray([limit.giga for limit in limits if not limit.is_bandwidth])
    widths = np.asarray([limit.giga for limit in limits if limit.is_bandwidth])
    # The ridges, where slope and flats meet, belong into the picture.
    ridges = np.ravel(speeds[:, None] / widths[None, :])
    across = log_scale(dots.intensity, ridges, ridges * 4, decades=3.0)
    return across, log_scale(dots.achieved, speeds, decades=3.0)


def _draw_ceilings(panel: Panel, across: Scale, limits: list[Ceiling]) -> None:
    text, muted = panel.canvas.theme.text, panel.canvas.theme.muted
    intensity = np.geomspace(across.low, across.high, 200)
    slopes = [limit for limit in limits if limit.is_bandwidth]
    flats = [limit for limit in limits if not limit.is_bandwidth]
    flats.sort(key=lambda flat: flat.giga)
    places = np.linspace(0.0, 1.0, 200)
    best = max((slope.giga for slope in slopes), default=float("inf"))
    for flat in flats:
        roof = np.minimum(best * intensity, flat.giga)
        panel.line(places, np.where(roof < flat.giga, np.nan, roof), text, width=1.6)
        y = _height(panel, flat.giga)
        at = (panel.rect.right - 6, y - 4)
        panel.canvas.text(at, flat.label, 11, colour=muted, anchor="rb")
    top = flats[-1].giga if flats else panel.scale.high
    for slope in slopes:
        rising = slope.giga * intensity
        panel.line(places, np.where(rising <= top, rising, np.nan), text, width=1.6)
        _name_slope(panel, across, slope, top)


def _name_slope(panel: Panel, across: Scale, slope: Ceiling, top: float) -> None:
    """Write the bandwidth beside its slope, where that stands a quarter up."""
    low = max(panel.scale.low, slope.giga * across.low)
    value = low * (top / low) ** 0.5 if top > low else low
    place = float(across.places(np.asarray([value / slope.giga]))[0])
    x = panel.rect.left + place * panel.rect.width
    at = (x - 10, _height(panel, value) - 6)
    fits = at[0] - text_width(slope.label, 11) > panel.rect.left
    muted = panel.canvas.theme.muted
    panel.canvas.text(at, slope.label, 11, colour=muted, anchor="rb" if fits else "lb")


def _height(panel: Panel, value: float) -> float:
    place = float(panel.scale.places(np.asarray([value]))[0])
    return panel.rect.bottom - place * panel.rect.height


def _draw_dots(panel: Panel, across: Scale, dots: Dots) -> list[Entry]:
    lines, places = panel.canvas.theme.lines, across.places(dots.intensity)
    longest = np.nanmax(dots.milliseconds) if np.isfinite(dots.milliseconds).any() else 1.0
    share = np.nan_to_num(dots.milliseconds) / max(float(longest), 1e-12)
    entries = []
    for index, verdict in enumerate(sorted(set(dots.verdicts))):
        colour, kind = lines[index % len(lines)], KINDS[index % len(KINDS)]
        of = np.flatnonzero([each == verdict for each in dots.verdicts])
        for at in of:
            one = slice(at, at + 1)
            radius = 4 + 5 * float(np.sqrt(share[at]))
            panel.markers(places[one], dots.achieved[one], colour, kind, radius)
        entries.append(Entry(f"{verdict} ({len(of)})", colour, kind))
    return entries


def _name_dots(canvas: Canvas, across: Scale, up: Scale, dots: Dots) -> None:
    """Name the layers that take longest, where there is room beside their dots."""
    x = PLOT.left + across.places(dots.intensity) * PLOT.width
    y = PLOT.bottom - up.places(dots.achieved) * PLOT.height
    taken: list[tuple[float, float, float]] = []
    for index in np.argsort(-np.nan_to_num(dots.milliseconds))[:MOST_NAMED]:
        name = shorten(dots.names[index], 170, 11)
        width = text_width(name, 11)
        fits = x[index] + 14 + width < PLOT.right
        start = float(x[index] + 12 if fits else x[index] - 12 - width)
        clear = all(
            abs(y[index] - other) > 13 or start > end or start + width < begun  # noqa: PLR2004
            for begun, end, other in taken
        )
        if clear:
            taken.append((start, start + width, float(y[index])))
            canvas.text((start, float(y[index])), name, 11, anchor="lm")
