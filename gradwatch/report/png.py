"""Pictures as small PNGs for a page: few colours, and those that mean something kept exact."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import PIL.Image

from gradwatch.pictures.theme import Colour


def as_png(
    image: PIL.Image.Image, colours: int | Sequence[Colour], exact: Sequence[Colour] = ()
) -> bytes:
    """Give a PNG of few colours.

    Args:
        image: RGB.
        colours: How many to choose, or which to use.
        exact: Further ones, that come through unchanged however few pixels have them.
    """
    indices, palette = _choose(image, colours)
    pixels = np.asarray(image)
    for colour in exact:
        indices[(pixels == colour).all(axis=2)] = len(palette)
        palette = [*palette, colour]
    paletted = PIL.Image.fromarray(indices)
    paletted.putpalette(np.asarray(palette, np.uint8).tobytes())
    written = io.BytesIO()
    paletted.save(written, "PNG", optimize=True)
    return written.getvalue()


def _choose(
    image: PIL.Image.Image, colours: int | Sequence[Colour]
) -> tuple[npt.NDArray[np.uint8], list[Colour]]:
    """Give each pixel's index in a palette, and the palette."""
    if isinstance(colours, int):
        few = image.quantize(colours, dither=PIL.Image.Dither.NONE)
        rows = np.reshape(few.getpalette() or [], (-1, 3))[:colours].tolist()
        return np.asarray(few).copy(), [(red, green, blue) for red, green, blue in rows]
    # Pillow's own mapping to a given palette is off by several levels.
    red, green, blue = np.moveaxis(np.asarray(image).astype(np.int64), 2, 0)
    found, place = np.unique((red << 16) | (green << 8) | blue, return_inverse=True)
    known = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1)
    distance = ((known[:, None] - np.asarray(colours)) ** 2).sum(axis=2)
    nearest = distance.argmin(axis=1).astype(np.uint8)
    return nearest[place].reshape(red.shape), list(colours)


def as_uri(png: bytes) -> str:
    """Give the address that holds the picture itself."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
