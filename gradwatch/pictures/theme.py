"""Colours of the pictures: light and dark, told apart by colour-blind readers too.

The scale is viridis, perceptually uniform. The colours of what has no place on it are far from
all of it, under normal, deuteranopic, protanopic and tritanopic sight (Machado et al. 2009):
at least 34 (non-finite), 26 (zero) and 10 (absent) units of CIE L*a*b*. Lines are Okabe and
Ito's, lightened on the dark ground.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gradwatch.readings import FloatArray

Colour = tuple[int, int, int]

VIRIDIS = (
    (68, 1, 84), (72, 24, 106), (71, 45, 123), (66, 64, 134), (59, 82, 139), (51, 99, 141),
    (44, 114, 142), (38, 130, 142), (33, 145, 140), (31, 160, 136), (40, 174, 128),
    (63, 188, 115), (94, 201, 98), (132, 212, 75), (173, 220, 48), (216, 226, 25), (253, 231, 37),
)  # fmt: skip
NON_FINITE: Colour = (255, 0, 255)
ZERO: Colour = (0, 0, 0)


class Theme(NamedTuple):
    """What a picture is coloured with.

    Attributes:
        name: ``"light"`` or ``"dark"``.
        ground: Behind everything.
        text: Titles and labels.
        muted: Axis titles, frames, ticks.
        grid: Lines of the grid.
        absent: Cells where there is no number.
        zero: Exact zeros outside the heatmap, where black would not show on every ground.
        non_finite: NaN and Inf.
        lines: Of series, told apart in this order.
    """

    name: str
    ground: Colour
    text: Colour
    muted: Colour
    grid: Colour
    absent: Colour
    zero: Colour
    non_finite: Colour
    lines: tuple[Colour, ...]


LIGHT = Theme(
    name="light",
    ground=(255, 255, 255),
    text=(26, 28, 33),
    muted=(92, 97, 107),
    grid=(226, 228, 233),
    absent=(232, 232, 235),
    zero=ZERO,
    non_finite=(214, 0, 214),
    lines=(
        (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (150, 100, 0), (86, 180, 233),
    ),
)  # fmt: skip
DARK = Theme(
    name="dark",
    ground=(21, 23, 28),
    text=(232, 234, 237),
    muted=(154, 160, 170),
    grid=(48, 52, 60),
    absent=(96, 92, 92),
    zero=(255, 255, 255),
    non_finite=NON_FINITE,
    lines=(
        (90, 150, 255), (240, 138, 60), (40, 190, 145), (224, 150, 192), (230, 190, 60),
        (150, 200, 245),
    ),
)  # fmt: skip


def viridis(places: FloatArray) -> npt.NDArray[np.uint8]:
    """Give colours of the scale.

    Args:
        places: (…) 0 to 1; beyond is clipped.

    Returns:
        (…, 3) red, green, blue.
    """
    table = np.asarray(VIRIDIS, dtype=np.float64)
    at = np.clip(places, 0, 1) * (len(table) - 1)
    below = np.minimum(at.astype(np.int64), len(table) - 2)
    part = (at - below)[..., None]
    mixed: FloatArray = table[below] * (1 - part) + table[below + 1] * part
    return np.rint(mixed).astype(np.uint8)


def blend(colour: Colour, ground: Colour, share: float) -> Colour:
    """Mix ``share`` of a colour into the ground."""
    red, green, blue = (
        round(c * share + g * (1 - share)) for c, g in zip(colour, ground, strict=True)
    )
    return red, green, blue
