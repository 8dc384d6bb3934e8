"""Pictures as small PNGs for a page: few colours, and those that mean something kept exact."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
import PIL.Image


def as_png(
    image: PIL.Image.Image, colours: int, exact: Sequence[tuple[int, int, int]] = ()
) -> bytes:
    """Give a PNG of few colours.

    Args:
        image: RGB.
        colours: How many at most.
        exact: Those among them that come through unchanged however few pixels have them.
    """
    few = image.quantize(colours - len(exact), dither=0)
    pixels, indices = np.asarray(image), np.asarray(few).copy()
    palette = (few.getpalette() or [])[: 3 * (colours - len(exact))]
    for colour in exact:
        indices[(pixels == colour).all(axis=2)] = len(palette) // 3
        palette = [*palette, *colour]
    paletted = PIL.Image.fromarray(indices)
    paletted.putpalette(palette)
    written = io.BytesIO()
    paletted.save(written, "PNG", optimize=True)
    return written.getvalue()


def as_uri(png: bytes) -> str:
    """Give the address that holds the picture itself."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
