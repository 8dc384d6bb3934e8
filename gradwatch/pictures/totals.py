"""The total gradient norm before and after clipping, and how often it was clipped."""

import numpy as np

from gradwatch.history import History
from gradwatch.pictures.panel import Panel, Timeline
from gradwatch.pictures.picture import Entry, Picture
from gradwatch.pictures.scale import Scale, Tick, log_scale
from gradwatch.pictures.series import Series, draw, entries, extremes, find, steps_of, tell_left_out
from gradwatch.pictures.theme import LIGHT, Theme
from gradwatch.readings import FloatArray, IntArray

TITLE = "Total gradient norm"
NORM = "The norm of all gradients together{} (the band holds the extremes of each bin of steps){}."
BOTH, RATE = (
    " before and after clipping",
    "; below, the share of the steps so far that were clipped",
)
PERCENTS = (Tick(0.0, "0 %"), Tick(0.5, "50 %"), Tick(1.0, "100 %"))
KEYS = ("grad/norm", "grad/norm_clipped", "grad/clip_rate")


def total_norm(history: History, *, theme: Theme = LIGHT) -> Picture:
    """Draw the total norm over the run, and the clip rate where something clips.

    Args:
        history: The run so far; may be empty.
        theme: Colours.
    """
    before = find(history, KEYS[0], theme)
    after = find(history, KEYS[1], theme, first_colour=1 if len(before) < 2 else 0)  # noqa: PLR2004
    rate = find(history, KEYS[2], theme)
    steps = steps_of(before, after, rate)
    line = Timeline(
        "flow/total_norm",
        TITLE,
        NORM.format(BOTH if after else "", RATE if rate else ""),
        steps=steps,
        heights=(250, 90) if rate else (250,),
        theme=theme,
    )
    bad = _bad_places(history, steps[1])
    marks = [Entry("NaN or Inf", theme.non_finite, "cross")] if bad.size else []
    scale = log_scale(*extremes(before, after))
    panel = line.panel(scale, "gradient norm", [*marks, *_legend(before, after, theme)])
    tell_left_out(line.canvas, history, KEYS[0])
    draw(panel, before)
    draw(panel, after, dashed=True)
    panel.edge_markers(bad, theme.non_finite, "cross", top=True)
    if rate:
        scale = Scale(0.0, 1.0)
        _draw_rate(line.panel(scale, "steps clipped", ticks=PERCENTS), rate)
    return line.finish()


def _legend(before: list[Series], after: list[Series], theme: Theme) -> list[Entry]:
    if not after:
        return entries(before)
    if len(before) == 1:
        return [*entries(before, "before clipping"), *entries(after, "after clipping", "dashed")]
    return [*entries(before), Entry("after clipping", theme.muted, "dashed")]


def _draw_rate(panel: Panel, rate: list[Series]) -> None:
    for _, bins, colour in rate:
        places = (np.arange(len(bins.first)) + 0.5) / len(bins.first)
        panel.line(places, bins.latest, colour)


def _bad_places(history: History, last: IntArray) -> FloatArray:
    """Give where a layer's gradient was non-finite: the scalars hold finite numbers only."""
    bins = history.layers()
    starts = bins.first[bins.bad.any(axis=0)]
    if not last.size or not starts.size:
        return np.empty(0)
    columns = np.searchsorted(np.maximum.accumulate(last), starts)
    return (np.unique(np.minimum(columns, len(last) - 1)) + 0.5) / len(last)
