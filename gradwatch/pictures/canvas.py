"""Drawing on pixels: text set with FreeType, lines smoothed by drawing them three times as big.

Straight on Pillow: a picture takes some 10 ms, and no global state of a plotting library is
touched.
"""

from __future__ import annotations

from typing import NamedTuple

from PIL import Image, ImageDraw

from gradwatch.pictures.lettering import font, literal, text_width
from gradwatch.pictures.theme import Colour, Theme

SMOOTH = 3
Point = tuple[float, float]


class Rect(NamedTuple):
    """A rectangle in pixels; right and bottom stand outside."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        """Pixels across."""
        return self.right - self.left

    @property
    def height(self) -> int:
        """Pixels down."""
        return self.bottom - self.top


class Canvas:
    """A picture that is being drawn.

    Attributes:
        image: RGB.
        theme: Its colours.
    """

    def __init__(self, width: int, height: int, theme: Theme) -> None:
        """Fill it with the ground."""
        self.image = Image.new("RGB", (width, height), theme.ground)
        self.theme = theme
        self._draw = ImageDraw.Draw(self.image)

    def text(
        self, at: Point, text: str, size: int = 12, *, colour: Colour | None = None,
        anchor: str = "ls",
    ) -> None:  # fmt: skip
        """Write a line, literally.

        Args:
            at: Where the anchor stands.
            text: Signs that cannot be printed are shown escaped.
            size: Pixels.
            colour: The theme's text colour if None.
            anchor: Pillow's two letters, such as ``"ls"`` (left, baseline), ``"rm"``, ``"mt"``.
        """
        fill = colour or self.theme.text
        self._draw.text(at, literal(text), fill=fill, font=font(size), anchor=anchor)

    def plate(self, at: Point, text: str, size: int, anchor: str) -> None:
        """Clear the ground under a line that is about to be written."""
        box = self._draw.textbbox(at, literal(text), font=font(size), anchor=anchor)
        left, top, right, bottom = (round(edge) for edge in box)
        self.fill(Rect(left - 2, top - 1, right + 3, bottom + 2), self.theme.ground)

    def text_upwards(self, at: Point, text: str, size: int = 12) -> None:
        """Write a line that is read from below, centred on a point."""
        width, height = text_width(text, size), size + 6
        mask = Image.new("L", (width + 2, height))
        ImageDraw.Draw(mask).text(
            (1, height / 2), literal(text), fill=255, font=font(size), anchor="lm"
        )
        turned = mask.transpose(Image.Transpose.ROTATE_90)
        corner = (round(at[0] - turned.width / 2), round(at[1] - turned.height / 2))
        self.image.paste(self.theme.muted, corner, turned)

    def text_aslant(self, end: Point, text: str, size: int, degrees: float) -> None:
        """Write a line that rises to its end, which stands at a point."""
        width, height = text_width(text, size) + 2, size + 6
        mask = Image.new("L", (width, height))
        ImageDraw.Draw(mask).text((1, height / 2), literal(text), 255, font(size), anchor="lm")
        turned = mask.rotate(degrees, Image.Resampling.BICUBIC, expand=True)
        corner = (round(end[0] - turned.width), round(end[1] - size / 2))
        self.image.paste(self.theme.text, corner, turned)

    def fill(self, rect: Rect, colour: Colour) -> None:
        """Fill a rectangle."""
        self.image.paste(colour, (*rect,))

    def frame(self, rect: Rect, colour: Colour) -> None:
        """Draw a line one pixel outside of a rectangle."""
        left, top, right, bottom = rect
        self._draw.rectangle((left - 1, top - 1, right, bottom), outline=colour)

    def stroke(self, points: list[Point], colour: Colour, width: int = 1) -> None:
        """Draw a crisp line, for ticks, grids and brackets."""
        self._draw.line(points, fill=colour, width=width)

    def put(self, layer: Layer, colour: Colour, share: float = 1.0) -> None:
        """Colour the shapes of a layer.

        Args:
            layer: The shapes.
            colour: One for all of them.
            share: How much of it covers what is behind, 0 to 1.
        """
        drawn = layer.render()
        if drawn is not None:
            mask, corner = drawn
            if share < 1:
                mask = mask.point([round(value * share) for value in range(256)])
            self.image.paste(colour, corner, mask)


class Layer:
    """Smooth shapes of one colour, in the pixels of the picture, clipped to a rectangle.

    They are drawn when they are put on a canvas, on no more pixels than they take.
    """

    def __init__(self, rect: Rect) -> None:
        """Start empty.

        Args:
            rect: What the shapes are clipped to.
        """
        self._rect = rect
        self._shapes: list[tuple[str, list[Point], float]] = []

    def line(self, points: list[Point], width: float = 2.0) -> None:
        """Draw a line through at least two points."""
        self._shapes.append(("line", points, width))

    def polygon(self, points: list[Point]) -> None:
        """Fill a polygon."""
        self._shapes.append(("polygon", points, 0.0))

    def circle(self, at: Point, radius: float) -> None:
        """Fill a circle."""
        self._shapes.append(("circle", [at], radius))

    def render(self) -> tuple[Image.Image, tuple[int, int]] | None:
        """Give a mask of the shapes and the pixel of its left upper corner; None without any."""
        if not self._shapes:
            return None
        left, top, right, bottom = self._reach()
        size = (max(right - left, 1) * SMOOTH, max(bottom - top, 1) * SMOOTH)
        mask = Image.new("L", size)
        draw = ImageDraw.Draw(mask)
        for kind, points, reach in self._shapes:
            scaled = [((x - left) * SMOOTH, (y - top) * SMOOTH) for x, y in points]
            _draw_shape(draw, kind, scaled, reach * SMOOTH)
        return mask.reduce(SMOOTH), (left, top)

    def _reach(self) -> Rect:
        xs = [x for _, points, _ in self._shapes for x, _ in points]
        ys = [y for _, points, _ in self._shapes for _, y in points]
        room = 1 + max(reach for _, _, reach in self._shapes)
        left, top, right, bottom = self._rect
        return Rect(
            max(left, int(min(xs) - room)), max(top, int(min(ys) - room)),
            min(right, int(max(xs) + room) + 1), min(bottom, int(max(ys) + room) + 1),
        )  # fmt: skip


def _draw_shape(draw: ImageDraw.ImageDraw, kind: str, points: list[Point], reach: float) -> None:
    if kind == "line":
        draw.line(points, fill=255, width=max(round(reach), 1), joint="curve")
    elif kind == "polygon":
        draw.polygon(points, fill=255)
    else:
        [(x, y)] = points
        draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=255)
