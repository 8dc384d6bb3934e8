"""Drawing on pixels: text set with FreeType, lines smoothed by drawing them three times as big.

Straight on Pillow: a picture takes some 10 ms, and no global state of a plotting library is
touched. The font is matplotlib's DejaVu Sans where matplotlib lies on disk (it is not
imported), else Pillow's own, which has few signs beyond ASCII: others are then spelt in ASCII.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from gradwatch.pictures.theme import Colour, Theme

SMOOTH = 3
PLAIN = str.maketrans(
    {"−": "-", "–": "-", "…": "...", "×": "x", "·": ".", "‖": "|", "≥": ">=", "→": "->"}
)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
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
        self._draw.text(at, literal(text), fill=fill, font=_font(size), anchor=anchor)

    def text_upwards(self, at: Point, text: str, size: int = 12) -> None:
        """Write a line that is read from below, centred on a point."""
        width, height = text_width(text, size), size + 6
        mask = Image.new("L", (width + 2, height))
        ImageDraw.Draw(mask).text(
            (1, height / 2), literal(text), fill=255, font=_font(size), anchor="lm"
        )
        turned = mask.transpose(Image.Transpose.ROTATE_90)
        corner = (round(at[0] - turned.width / 2), round(at[1] - turned.height / 2))
        self.image.paste(self.theme.muted, corner, turned)

    def fill(self, rect: Rect, colour: Colour) -> None:
        """Fill a rectangle."""
        self.image.paste(colour, tuple(rect))

    def frame(self, rect: Rect, colour: Colour) -> None:
        """Draw a line one pixel outside of a rectangle."""
        left, top, right, bottom = rect
        self._draw.rectangle((left - 1, top - 1, right, bottom), outline=colour)

    def stroke(self, points: list[Point], colour: Colour, width: int = 1) -> None:
        """Draw a crisp line, for ticks, grids and brackets."""
        self._draw.line(points, fill=colour, width=width)

    def layer(self, rect: Rect) -> Layer:
        """Give a layer to draw smooth shapes on, clipped to a rectangle."""
        return Layer(rect)

    def put(self, layer: Layer, colour: Colour, share: float = 1.0) -> None:
        """Colour what was drawn on a layer.

        Args:
            layer: The shapes.
            colour: One for all of them.
            share: How much of it covers what is behind, 0 to 1.
        """
        mask = layer.mask.reduce(SMOOTH)
        if share < 1:
            mask = mask.point(lambda value: value * share)
        self.image.paste(colour, layer.rect[:2], mask)


class Layer:
    """Shapes of one colour, in the pixels of the picture.

    Attributes:
        rect: What they are clipped to.
        mask: Where they are, three times as big.
    """

    def __init__(self, rect: Rect) -> None:
        """Start empty."""
        self.rect = rect
        self.mask = Image.new("L", (rect.width * SMOOTH, rect.height * SMOOTH))
        self._draw = ImageDraw.Draw(self.mask)

    def line(self, points: list[Point], width: float = 2.0) -> None:
        """Draw a line through at least two points."""
        self._draw.line(self._scaled(points), fill=255, width=round(width * SMOOTH), joint="curve")

    def polygon(self, points: list[Point]) -> None:
        """Fill a polygon."""
        self._draw.polygon(self._scaled(points), fill=255)

    def circle(self, at: Point, radius: float) -> None:
        """Fill a circle."""
        [(x, y)] = self._scaled([at])
        reach = radius * SMOOTH
        self._draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=255)

    def _scaled(self, points: list[Point]) -> list[Point]:
        left, top = self.rect[:2]
        return [((x - left) * SMOOTH, (y - top) * SMOOTH) for x, y in points]


def text_width(text: str, size: int = 12) -> int:
    """Give the pixels a line takes."""
    return round(_font(size).getlength(literal(text))) + 1


def shorten(text: str, pixels: int, size: int = 12) -> str:
    """Cut a name to a width; its end stays, as siblings differ there."""
    if text_width(text, size) <= pixels:
        return text
    kept = text
    while kept and text_width(f"…{kept}", size) > pixels:
        kept = kept[max(1, len(kept) // 12) :]
    return f"…{kept}"


def literal(text: str) -> str:
    """Give a text that takes one line whatever is in it."""
    shown = "".join(sign if sign.isprintable() else _escape(sign) for sign in text)
    if _font_path() is None:
        return shown.translate(PLAIN).encode("ascii", "backslashreplace").decode()
    return shown


def power(exponent: int) -> str:
    """Write a power of ten.

    Examples:
        >>> power(-3)
        '10⁻³'
    """
    if _font_path() is None:
        return f"1e{exponent}"
    return f"10{str(exponent).translate(SUPERSCRIPTS)}"


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape", "backslashreplace").decode()


@cache
def _font(size: int) -> Font:
    path = _font_path()
    if path is None:
        return ImageFont.load_default(size)
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


@cache
def _font_path() -> str | None:
    spec = importlib.util.find_spec("matplotlib")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "mpl-data", "fonts", "ttf", "DejaVuSans.ttf")
        if path.is_file():
            return str(path)
    return None
