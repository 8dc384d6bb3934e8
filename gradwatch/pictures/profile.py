"""The mountain: the gradient norm of each layer over depth, with the run's range behind it.

Shapes: L layers, C bins of steps.
"""

import numpy as np

from gradwatch.history import History, LayerBins
from gradwatch.pictures.canvas import Canvas, Rect
from gradwatch.pictures.lettering import shorten, text_width
from gradwatch.pictures.outline import Group, outline
from gradwatch.pictures.panel import RIGHT, TOP, Panel
from gradwatch.pictures.picture import WIDTH, Entry, Picture, begin, box_of, legend
from gradwatch.pictures.scale import log_scale
from gradwatch.pictures.statistics import middles, percentiles
from gradwatch.pictures.theme import LIGHT, Colour, Theme, blend
from gradwatch.readings import BoolArray, FloatArray

TITLE = "Gradient norm over depth"
CAPTION = (
    "The line is the last recorded step, the band what each layer did over the run: a healthy"
    " profile is a mountain within its band, a cliff is where the gradient vanishes."
)
HEIGHT = 330
SLANT_DEGREES = 35
BAND_SHARE = 0.35
COSINE, SINE = 0.82, 0.574
LABEL_SPACING = 21
MOST_NAME_PIXELS = 190
MOST_DOTS = 60
MOST_GROUPS = 12
MOST_FOR_A_THICK_LINE = 200
LEAST_LEFT = 76


def profile(history: History, *, theme: Theme = LIGHT) -> Picture:
    """Draw each layer's last gradient norm over depth, with the run's range behind it.

    Args:
        history: The run so far; may be empty.
        theme: Colours.

    Returns:
        The picture, with a logarithmic norm axis; layers that have no place on it (non-finite,
        zero, no gradient) are marked at its lower edge and counted in the legend.
    """
    bins = history.layers()
    labels = _labels(bins.layers)
    names = [shorten(label.label, MOST_NAME_PIXELS, 11) for label in labels]
    places = [(label.first + label.stop) / 2 / max(len(bins.layers), 1) for label in labels]
    canvas, rect = _lay_out(names, places, theme)
    low, middle, high = percentiles(middles(bins), (10, 50, 90), axis=1)
    panel = Panel(canvas, rect, log_scale(low, high, bins.latest, decades=2.0), "gradient norm")
    depth = (np.arange(len(bins.layers)) + 0.5) / max(len(bins.layers), 1)
    band, middle_colour, line = theme.lines[5], theme.muted, theme.lines[0]
    panel.band(depth, low, high, band, BAND_SHARE)
    panel.line(depth, middle, middle_colour, width=1.4, dashed=True)
    panel.line(depth, bins.latest, line, width=2 if len(depth) <= MOST_FOR_A_THICK_LINE else 1)
    if len(depth) <= MOST_DOTS:
        panel.markers(depth, bins.latest, line)
    entries = [
        Entry("run so far, p10–p90", blend(band, theme.ground, BAND_SHARE)),
        Entry("median", middle_colour, "dashed"),
        Entry("last recorded step", line, "line"),
    ]  # fmt: skip
    marks = _mark_edge(panel, depth, bins)
    legend(canvas, rect.right, 42, [*marks, *entries])
    _name_layers(canvas, rect, labels, names, len(bins.layers))
    return Picture("flow/profile", TITLE, CAPTION, canvas.image, box_of(canvas, rect))


def _lay_out(names: list[str], places: list[float], theme: Theme) -> tuple[Canvas, Rect]:
    """Leave the slanted names the room they need at the left and below."""
    widths = [text_width(name, 11) for name in names]
    reach = [
        width * COSINE - place * (WIDTH - 120) for width, place in zip(widths, places, strict=True)
    ]
    left = round(max([LEAST_LEFT, *(pixels + 12 for pixels in reach)]))
    below = round(max([0, *widths]) * SINE) + 44
    canvas = begin(TITLE, TOP + HEIGHT + below, theme)
    return canvas, Rect(left, TOP, WIDTH - RIGHT, TOP + HEIGHT)


def _mark_edge(panel: Panel, depth: FloatArray, bins: LayerBins) -> list[Entry]:
    theme = panel.canvas.theme
    marks: tuple[tuple[str, BoolArray, Colour, str], ...] = (
        ("no gradient", np.isnan(bins.latest), theme.muted, "bar"),
        ("exactly 0", bins.latest == 0, theme.zero, "triangle"),
        ("NaN or Inf", np.isinf(bins.latest), theme.non_finite, "cross"),
    )
    entries = []
    for label, where, colour, kind in marks:
        if where.any():
            panel.edge_markers(depth[where], colour, kind)
            entries.append(Entry(f"{label} ({where.sum():,})", colour, kind))
    return entries


def _labels(layers: tuple[str, ...]) -> list[Group]:
    if len(layers) * LABEL_SPACING <= WIDTH - 150:
        return [Group(index, index + 1, layer) for index, layer in enumerate(layers)]
    return outline(layers, MOST_GROUPS)


def _name_layers(
    canvas: Canvas, rect: Rect, labels: list[Group], names: list[str], count: int
) -> None:
    muted, taken = canvas.theme.muted, list[float]()
    order = sorted(range(len(labels)), key=lambda i: labels[i].first - labels[i].stop)
    for index in order:
        first, stop, _ = labels[index]
        start, end = (rect.left + at / count * rect.width for at in (first, stop))
        middle = (start + end) / 2
        if end - start > 8 and stop - first > 1:  # noqa: PLR2004 - pixels
            y = rect.bottom + 6
            canvas.stroke(
                [(start + 1, y - 3), (start + 1, y), (end - 2, y), (end - 2, y - 3)], muted
            )
        else:
            canvas.stroke([(middle, rect.bottom), (middle, rect.bottom + 4)], muted)
        if all(abs(middle - other) >= LABEL_SPACING - 1 for other in taken):
            taken.append(middle)
            canvas.text_aslant((middle + 4, rect.bottom + 9), names[index], 11, SLANT_DEGREES)
    below = canvas.image.height - 10
    title = f"layer, in execution order ({count:,} in all)"
    canvas.text(((rect.left + rect.right) / 2, below), title, colour=muted, anchor="ms")
