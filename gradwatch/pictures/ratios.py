"""How much each update moves the weights: the layers' update/weight ratio over the run.

Shapes: L layers, C bins of steps.
"""

import numpy as np

from gradwatch.history import History
from gradwatch.pictures.lettering import shorten
from gradwatch.pictures.panel import BAND_SHARE, Timeline, name_ends, widest
from gradwatch.pictures.picture import Entry, Picture
from gradwatch.pictures.scale import log_scale
from gradwatch.pictures.statistics import middles, percentiles
from gradwatch.pictures.theme import LIGHT, Theme, blend
from gradwatch.readings import FloatArray

TITLE = "Update/weight ratio"
CAPTION = (
    "How far a step moves the weights, relative to their size: about 1e-3 is usual; layers far"
    " above learn too fast, far below they hardly learn. The layers furthest out are named."
)
HEIGHT = 300
USUAL = 1e-3
MOST_OUTLIERS = 5
OUTLYING_DECADES = 0.7
MOST_ALL_NAMED = 5
MOST_NAME_PIXELS = 200


def update_ratio(history: History, *, theme: Theme = LIGHT) -> Picture:
    """Draw median and spread of ‖θ′−θ‖/‖θ‖ over the layers, and the layers that stand out.

    Args:
        history: The run so far; may be empty.
        theme: Colours.
    """
    bins = history.layers("update_ratio")
    logs = middles(bins)
    named = _outliers(logs)
    names = [shorten(bins.layers[index], MOST_NAME_PIXELS, 11) for index in named]
    right = 24 if not names else widest(names) + 20
    line = Timeline(
        "flow/update_ratio", TITLE, CAPTION, steps=(bins.first, bins.last), heights=(HEIGHT,),
        theme=theme, right=right,
    )  # fmt: skip
    low, middle, high = percentiles(logs, (10, 50, 90), axis=0)
    values = 10 ** logs[named]
    scale = log_scale(low, high, values, np.array([USUAL]))
    many = len(bins.layers) > MOST_ALL_NAMED
    title = "update norm / weight norm of a step"
    panel = line.panel(scale, title, _legend(len(bins.layers), theme) if many else ())
    if many:
        panel.band(line.places, low, high, theme.lines[0])
        panel.line(line.places, middle, theme.lines[0])
    colours = [theme.lines[1 + index % (len(theme.lines) - 1)] for index in range(len(named))]
    for series, colour in zip(values, colours, strict=True):
        panel.line(line.places, series, colour, width=1.4)
    panel.guide(USUAL, "1e-3, usual")
    ends = [_last(series) for series in values]
    name_ends(panel, list(zip(names, ends, colours, strict=True)))
    return line.finish()


def _legend(count: int, theme: Theme) -> list[Entry]:
    line, band = theme.lines[0], blend(theme.lines[0], theme.ground, BAND_SHARE)
    return [Entry(f"median of {count:,} layers", line, "line"), Entry("p10–p90 of layers", band)]


def _outliers(logs: FloatArray) -> list[int]:
    """Give the layers whose own median lies furthest from the median of all; few: all of them."""
    usable = np.flatnonzero(np.isfinite(logs).any(axis=1))
    if len(usable) <= MOST_ALL_NAMED:
        return [int(index) for index in usable]
    [own] = np.log10(percentiles(logs[usable], (50,), axis=1))
    distance = np.abs(own - np.median(own))
    furthest = np.argsort(-distance)[:MOST_OUTLIERS]
    outlying = furthest[distance[furthest] >= OUTLYING_DECADES]
    return [int(index) for index in usable[outlying]]


def _last(series: FloatArray) -> float:
    known = series[np.isfinite(series)]
    return float(known[-1]) if known.size else float("nan")
