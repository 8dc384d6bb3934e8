"""Scalars by their key, one for each optimizer or parameter group, ready to be drawn."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradwatch.history import History, ScalarBins
from gradwatch.pictures.canvas import Canvas
from gradwatch.pictures.panel import Panel
from gradwatch.pictures.picture import Entry
from gradwatch.pictures.theme import Colour, Theme
from gradwatch.readings import FloatArray, IntArray

MOST_SERIES = 6


class Series(NamedTuple):
    """A scalar of one optimizer or group.

    Attributes:
        suffix: What follows the key, such as ``"opt0"``; empty where there is but one.
        bins: Its numbers.
        colour: The same for the same suffix in all panels of a picture.
    """

    suffix: str
    bins: ScalarBins
    colour: Colour


def find(history: History, key: str, theme: Theme, *, first_colour: int = 0) -> list[Series]:
    """Give a scalar and its variants, ``key`` and ``key/…``; the first six of them.

    Args:
        history: The run.
        key: Metric key without suffix.
        theme: Colours.
        first_colour: Index of the colour of the first.
    """
    found = ((name, history.scalar(name)) for name in _variants(history, key)[:MOST_SERIES])
    colours = theme.lines
    return [
        Series(name[len(key) + 1 :], bins, colours[(index + first_colour) % len(colours)])
        for index, (name, bins) in enumerate(found)
        if bins is not None
    ]


def tell_left_out(canvas: Canvas, history: History, key: str) -> None:
    """Write how many variants of a scalar have no place on the picture, if any."""
    count = len(_variants(history, key))
    if count > MOST_SERIES:
        text = f"the first {MOST_SERIES} of {count} are shown"
        canvas.text((14, 41), text, 11, colour=canvas.theme.muted)


def _variants(history: History, key: str) -> list[str]:
    names = history.keys()
    return [name for name in names if name == key or name.startswith(f"{key}/")]


def draw(panel: Panel, series: Sequence[Series], *, dashed: bool = False) -> None:
    """Draw the last value of each bin as a line, and its extremes as a band."""
    for _, bins, colour in series:
        count = len(bins.first)
        places = (np.arange(count) + 0.5) / max(count, 1)
        if (bins.high > bins.low).any():
            panel.band(places, bins.low, bins.high, colour)
        panel.line(places, bins.latest, colour, dashed=dashed)


def entries(series: Sequence[Series], label: str = "", kind: str = "line") -> list[Entry]:
    """Give the legend of series; none where there is one that has no label."""
    named = [(" ".join(filter(None, (label, each.suffix))), each.colour) for each in series]
    return [Entry(name, colour, kind) for name, colour in named if name]


def extremes(*series: Sequence[Series]) -> list[FloatArray]:
    """Give what a scale must hold."""
    every = [each.bins for group in series for each in group]
    return [grid for bins in every for grid in (bins.low, bins.high)]


def steps_of(*series: Sequence[Series]) -> tuple[IntArray, IntArray]:
    """Give first and last step of each bin: one axis for all scalars of a run."""
    bins = next((group[0].bins for group in series if group), None)
    empty = np.empty(0, dtype=np.int64)
    return (empty, empty) if bins is None else (bins.first, bins.last)
