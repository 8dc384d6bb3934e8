"""A rectangle with a vertical scale, and what is drawn in it; panels under one another.

Horizontal places are fractions of the rectangle, 0 to 1. NaN leaves a gap.

Shapes: N places, C bins of steps.
"""

from collections.abc import Sequence

import numpy as np

from gradwatch.pictures.canvas import Canvas, Layer, Point, Rect
from gradwatch.pictures.lettering import text_width
from gradwatch.pictures.markers import draw_marker
from gradwatch.pictures.picture import (
    LABEL_SIZE,
    WIDTH,
    Entry,
    Picture,
    begin,
    box_of,
    horizontal_axis,
    legend,
    vertical_axis,
)
from gradwatch.pictures.scale import Scale, Tick, step_ticks
from gradwatch.pictures.theme import Colour, Theme
from gradwatch.readings import FloatArray, IntArray

LEFT = 92
RIGHT = 24
TOP = 50
BELOW = 48
GAP = 34
DASH_PIXELS = 7.0
MARKER_ROOM = 8
SMALL_SIZE = 11
BAND_SHARE = 0.25


class Panel:
    """A rectangle of a picture with a vertical scale.

    Attributes:
        canvas: The picture.
        rect: Where on it.
        scale: From values to heights.
    """

    def __init__(
        self, canvas: Canvas, rect: Rect, scale: Scale, title: str,
        ticks: Sequence[Tick] | None = None,
    ) -> None:  # fmt: skip
        """Draw the frame, the grid and the vertical axis; the scale's own ticks if None."""
        self.canvas, self.rect, self.scale = canvas, rect, scale
        shown = scale.ticks(max(rect.height // 26, 3)) if ticks is None else ticks
        vertical_axis(canvas, rect, shown, title)
        canvas.frame(rect, canvas.theme.muted)

    def line(
        self, places: FloatArray, values: FloatArray, colour: Colour, *, width: float = 2.0,
        dashed: bool = False,
    ) -> None:  # fmt: skip
        """Draw a line through the values; one between two gaps becomes a dot."""
        layer = Layer(self.rect)
        for points in self._stretches(places, values):
            if len(points) == 1:
                layer.circle(points[0], 1.5 * width)
            else:
                for piece in _dashes(points) if dashed else [points]:
                    layer.line(piece, width)
        self.canvas.put(layer, colour)

    def band(
        self, places: FloatArray, low: FloatArray, high: FloatArray, colour: Colour,
        share: float = BAND_SHARE,
    ) -> None:  # fmt: skip
        """Fill between two series; a lone value becomes a narrow bar."""
        layer = Layer(self.rect)
        known = np.isfinite(self.scale.places(low)) & np.isfinite(self.scale.places(high))
        bottoms = self._stretches(places, np.where(known, low, np.nan))
        tops = self._stretches(places, np.where(known, high, np.nan))
        for bottom, top in zip(bottoms, tops, strict=True):
            if len(bottom) == 1:
                layer.line([bottom[0], top[0]], 4)
            else:
                layer.polygon([*bottom, *reversed(top)])
        self.canvas.put(layer, colour, share)

    def markers(
        self, places: FloatArray, values: FloatArray, colour: Colour, kind: str = "circle",
        radius: float = 3.5,
    ) -> None:  # fmt: skip
        """Draw a marker at each value."""
        points = [point for stretch in self._stretches(places, values) for point in stretch]
        self._mark(points, colour, kind, radius)

    def edge_markers(
        self, places: FloatArray, colour: Colour, kind: str, *, top: bool = False
    ) -> None:
        """Draw markers at the lower (or upper) edge, for what has no place on the scale."""
        y = self.rect.top + 7.0 if top else self.rect.bottom - 7.0
        points = [(self.rect.left + place * self.rect.width, y) for place in places.tolist()]
        self._mark(points, colour, kind, 5.0)

    def guide(self, value: float, label: str) -> None:
        """Draw a dashed level with its meaning, where the scale reaches it; after the lines."""
        place = float(self.scale.places(np.asarray([value]))[0])
        if not 0 <= place <= 1:
            return
        muted = self.canvas.theme.muted
        self.line(np.array([0.0, 1.0]), np.array([value, value]), muted, width=1.2, dashed=True)
        y = self.rect.bottom - place * self.rect.height
        under = place > 0.9  # noqa: PLR2004 - no room above it
        at = (self.rect.left + 6, y + (4 if under else -4))
        anchor = "lt" if under else "lb"
        self.canvas.plate(at, label, SMALL_SIZE, anchor)
        self.canvas.text(at, label, SMALL_SIZE, colour=muted, anchor=anchor)

    def _mark(self, points: list[Point], colour: Colour, kind: str, radius: float) -> None:
        left, top, right, bottom = self.rect
        room = MARKER_ROOM
        layer = Layer(Rect(left - room, top - room, right + room, bottom + room))
        for point in points:
            draw_marker(layer, point, kind, radius)
        self.canvas.put(layer, colour)

    def _stretches(self, places: FloatArray, values: FloatArray) -> list[list[Point]]:
        """Give the pixels of the values, cut where there is none."""
        heights = self.scale.places(values)
        known = np.flatnonzero(np.isfinite(heights))
        x = self.rect.left + places * self.rect.width
        y = self.rect.bottom - heights * self.rect.height
        runs = np.split(known, np.flatnonzero(np.diff(known) > 1) + 1)
        return [
            list(zip(x[run].tolist(), y[run].tolist(), strict=True)) for run in runs if run.size
        ]


class Timeline:
    """Panels under one another over the same bins of steps."""

    def __init__(
        self, name: str, title: str, caption: str, *, steps: tuple[IntArray, IntArray],
        heights: Sequence[int], theme: Theme, right: int = RIGHT,
    ) -> None:  # fmt: skip
        """Begin the picture.

        Args:
            name: Key of the picture.
            title: What it shows.
            caption: How to read it.
            steps: (C,) first and (C,) last step of each bin.
            heights: Pixels of each panel, from the top.
            theme: Colours.
            right: Pixels kept free at the right.
        """
        self._words = (name, title, caption)
        self._steps, self._heights = steps, list(heights)
        height = TOP + sum(heights) + GAP * (len(heights) - 1) + BELOW
        self.canvas = begin(title, height, theme)
        self.whole = Rect(LEFT, TOP, WIDTH - right, height - BELOW)
        self._next = TOP

    @property
    def places(self) -> FloatArray:
        """(C,) horizontal middle of each bin."""
        count = len(self._steps[0])
        return (np.arange(count) + 0.5) / max(count, 1)

    def panel(
        self, scale: Scale, title: str, entries: Sequence[Entry] = (), *,
        ticks: Sequence[Tick] | None = None,
    ) -> Panel:  # fmt: skip
        """Give the next panel.

        Args:
            scale: Its vertical scale.
            title: What stands on the vertical axis, with the unit.
            entries: Its legend.
            ticks: On the vertical axis, where the scale's own do not serve.
        """
        bottom = self._next + self._heights.pop(0)
        rect = Rect(self.whole.left, self._next, self.whole.right, bottom)
        legend(self.canvas, rect.right, rect.top - 11, entries)
        self._next = bottom + GAP
        return Panel(self.canvas, rect, scale, title, ticks)

    def finish(self) -> Picture:
        """Write the axis of the steps."""
        horizontal_axis(self.canvas, self.whole, step_ticks(*self._steps), "step")
        box, count = box_of(self.canvas, self.whole), len(self._steps[0])
        name, title, caption = self._words
        return Picture(name, title, caption, self.canvas.image, box, columns=count)


def name_ends(panel: Panel, ends: Sequence[tuple[str, float, Colour]]) -> None:
    """Write names at the right of a panel, each beside the end of its line, none over another.

    Args:
        panel: The panel.
        ends: Name, last value and colour of each line.
    """
    rect, free_from = panel.rect, float(panel.rect.top - 6)
    values = np.asarray([value for _, value, _ in ends], dtype=np.float64)
    heights = rect.bottom - np.clip(panel.scale.places(values), 0, 1) * rect.height
    room = len(ends) * (LABEL_SIZE + 3)
    for index in np.argsort(heights):
        y = min(max(float(heights[index]), free_from + 8), rect.bottom - room + 14)
        name, _, colour = ends[index]
        panel.canvas.text((rect.right + 8, y), name, SMALL_SIZE, colour=colour, anchor="lm")
        free_from, room = y + 7, room - (LABEL_SIZE + 3)


def widest(names: Sequence[str]) -> int:
    """Give the pixels the widest of small labels takes."""
    return max((text_width(name, SMALL_SIZE) for name in names), default=0)


def _dashes(points: list[Point]) -> list[list[Point]]:
    xy = np.asarray(points)
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(xy, axis=0).T))])
    starts = np.arange(0.0, along[-1], 2 * DASH_PIXELS)
    pieces = []
    for start in starts:
        end = min(start + DASH_PIXELS, along[-1])
        inner = along[(along > start) & (along < end)]
        at = np.concatenate([[start], inner, [end]])
        x, y = np.interp(at, along, xy[:, 0]), np.interp(at, along, xy[:, 1])
        pieces.append(list(zip(x.tolist(), y.tolist(), strict=True)))
    return pieces
