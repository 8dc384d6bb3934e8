"""What a picture is, and the margins, axes and legends all of them share."""

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from gradwatch.pictures.canvas import Canvas, Layer, Rect
from gradwatch.pictures.lettering import text_width
from gradwatch.pictures.markers import draw_marker
from gradwatch.pictures.scale import Tick
from gradwatch.pictures.theme import Colour, Theme

WIDTH = 960
TITLE_SIZE = 16
LABEL_SIZE = 12


class Picture(NamedTuple):
    """A drawn picture, with what a page needs to lay a pointer over it.

    Attributes:
        name: Key, such as ``"flow/heatmap"``.
        title: What it shows, in a few words.
        caption: One sentence on how to read it.
        image: RGB.
        box: Left, top, right, bottom of the data, as fractions of the image.
        rows: First and last layer of each row of a heatmap; empty elsewhere.
        columns: Number of equally wide bins of steps across the box; 0 where the horizontal
            axis shows something else.
    """

    name: str
    title: str
    caption: str
    image: Image.Image
    box: tuple[float, float, float, float]
    rows: tuple[tuple[int, int], ...] = ()
    columns: int = 0


class Entry(NamedTuple):
    """A line of a legend.

    Attributes:
        label: What is shown.
        colour: In which colour.
        kind: ``"line"``, ``"dashed"``, ``"band"`` or a marker's name.
    """

    label: str
    colour: Colour
    kind: str = "band"


def begin(title: str, height: int, theme: Theme, *, width: int = WIDTH) -> Canvas:
    """Start a picture with its title."""
    canvas = Canvas(width, height, theme)
    canvas.text((14, 24), title, TITLE_SIZE)
    return canvas


def box_of(canvas: Canvas, rect: Rect) -> tuple[float, float, float, float]:
    """Give a rectangle as fractions of the image."""
    width, height = canvas.image.size
    return rect.left / width, rect.top / height, rect.right / width, rect.bottom / height


def horizontal_axis(canvas: Canvas, rect: Rect, ticks: Sequence[Tick], title: str) -> None:
    """Write ticks and title under a rectangle; labels that would overlap are left out."""
    muted = canvas.theme.muted
    free_from = float("-inf")
    for place, label in ticks:
        x = rect.left + place * rect.width
        canvas.stroke([(x, rect.bottom), (x, rect.bottom + 4)], muted)
        half = text_width(label, LABEL_SIZE) / 2
        if x - half > free_from:
            canvas.text((x, rect.bottom + 7), label, LABEL_SIZE, anchor="mt")
            free_from = x + half + 6
    middle = (rect.left + rect.right) / 2
    canvas.text((middle, rect.bottom + 26), title, LABEL_SIZE, colour=muted, anchor="mt")


def vertical_axis(
    canvas: Canvas, rect: Rect, ticks: Sequence[Tick], title: str, *, grid: bool = True
) -> None:
    """Write ticks and title at the left of a rectangle, and lines of the grid across it."""
    theme, widest = canvas.theme, 0
    for place, label in ticks:
        y = rect.bottom - place * rect.height
        if grid:
            canvas.stroke([(rect.left, y), (rect.right - 1, y)], theme.grid)
        canvas.stroke([(rect.left - 4, y), (rect.left - 1, y)], theme.muted)
        canvas.text((rect.left - 7, y), label, LABEL_SIZE, anchor="rm")
        widest = max(widest, text_width(label, LABEL_SIZE))
    x = max(rect.left - widest - 22, 9)
    canvas.text_upwards((x, (rect.top + rect.bottom) / 2), title, LABEL_SIZE)


def legend(canvas: Canvas, right: int, baseline: int, entries: Sequence[Entry]) -> None:
    """Write entries side by side, ending at the right."""
    x = right
    for label, colour, kind in reversed(entries):
        x -= text_width(label, LABEL_SIZE)
        canvas.text((x, baseline), label, LABEL_SIZE)
        x -= 24
        swatch(canvas, (x, baseline - 4), colour, kind)
        x -= 16


def swatch(canvas: Canvas, at: tuple[int, int], colour: Colour, kind: str) -> None:
    """Draw the sample of a legend, 18 pixels wide, beginning at a point."""
    x, y = at
    if kind == "band":
        box = Rect(x + 4, y - 5, x + 18, y + 5)
        canvas.fill(box, colour)
        canvas.frame(box, canvas.theme.muted)
    elif kind == "line":
        canvas.stroke([(x, y), (x + 18, y)], colour, 3)
    elif kind == "dashed":
        for start in (x, x + 7, x + 14):
            canvas.stroke([(start, y), (start + 4, y)], colour, 2)
    else:
        layer = Layer(Rect(x, y - 9, x + 24, y + 9))
        draw_marker(layer, (x + 12, y), kind, 5.0)
        canvas.put(layer, colour)
