"""Text: fonts, widths, and names cut to their room.

The font is matplotlib's DejaVu Sans where matplotlib lies on disk (it is not imported), else
Pillow's own, which has few signs beyond ASCII: others are then spelt in ASCII.
"""

import importlib.util
from functools import cache, lru_cache
from pathlib import Path

from PIL import ImageFont

from gradwatch.printable import printable

PLAIN = str.maketrans(
    {"−": "-", "–": "-", "…": "...", "×": "x", "·": ".", "‖": "|", "≥": ">=", "→": "->"}
)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@lru_cache(maxsize=8192)
def text_width(text: str, size: int = 12) -> int:
    """Give the pixels a line takes."""
    return round(font(size).getlength(literal(text))) + 1


def shorten(text: str, pixels: int, size: int = 12) -> str:
    """Cut a name to a width; its end stays, as siblings differ there."""
    if text_width(text, size) <= pixels:
        return text
    kept = text[-max(int(len(text) * pixels / text_width(text, size)), 1) :]
    while kept and text_width(f"…{kept}", size) > pixels:
        kept = kept[1:]
    return f"…{kept}"


def cut(text: str, pixels: int, size: int = 12) -> str:
    """Cut words to a width; their beginning stays."""
    return shorten(text[::-1], pixels, size)[::-1]


def literal(text: str) -> str:
    """Give a text that takes one line whatever is in it."""
    shown = printable(text)
    if _font_path() is None:
        return shown.translate(PLAIN).encode("ascii", "backslashreplace").decode()
    return shown


def power(exponent: int, base: int = 10) -> str:
    """Write a power.

    Examples:
        >>> power(-3), power(16, 2)
        ('10⁻³', '2¹⁶')
    """
    if _font_path() is None:
        return f"1e{exponent}" if base == 10 else f"{base}^{exponent}"  # noqa: PLR2004 - decimal
    return f"{base}{str(exponent).translate(SUPERSCRIPTS)}"


@cache
def font(size: int) -> Font:
    """Give the font at a size in pixels."""
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
