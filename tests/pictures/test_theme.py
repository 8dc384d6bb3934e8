"""What has no place on the scale is told apart from all of it, by colour-blind readers too."""

import numpy as np
import pytest

from gradwatch.pictures import DARK, LIGHT
from gradwatch.pictures.theme import NON_FINITE, ZERO, Colour, blend, viridis
from gradwatch.readings import FloatArray

# Machado, Oliveira and Fernandes 2009, full severity, on linear red, green, blue.
SIGHTS = {
    "normal": np.eye(3),
    "deuteranopic": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopic": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "tritanopic": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def to_lab(colours: FloatArray, sight: FloatArray) -> FloatArray:
    """Give CIE L*a*b* of sRGB colours (N, 3) as they are seen."""
    parts = colours / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    xyz = np.clip(linear @ sight.T, 0, 1) @ TO_XYZ.T / WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = f.T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


def distance(colour: Colour, others: FloatArray) -> float:
    """Give the least distance under any sight."""
    one = np.array([colour], dtype=np.float64)
    return min(
        float(np.linalg.norm(to_lab(one, sight) - to_lab(others, sight), axis=1).min())
        for sight in SIGHTS.values()
    )


@pytest.mark.parametrize(
    ("colour", "least"),
    [(NON_FINITE, 34), (ZERO, 26), (LIGHT.absent, 10), (DARK.absent, 10)],
)
def test_marks_are_far_from_the_whole_scale(colour: Colour, least: float) -> None:
    scale = viridis(np.linspace(0, 1, 256)).astype(np.float64)
    assert distance(colour, scale) >= least


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_marks_are_far_from_one_another(theme: object) -> None:
    absent = DARK.absent if theme is DARK else LIGHT.absent
    for colour, others in ((NON_FINITE, [ZERO, absent]), (ZERO, [absent])):
        assert distance(colour, np.array(others, dtype=np.float64)) > 20


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_the_first_lines_are_told_apart_from_each_other_and_the_ground(theme: object) -> None:
    chosen = DARK if theme is DARK else LIGHT
    for index, line in enumerate(chosen.lines[:3]):
        others = [chosen.ground, *chosen.lines[:index], *chosen.lines[index + 1 : 3]]
        assert distance(line, np.array(others, dtype=np.float64)) > 16


def test_the_scale_grows_evenly_lighter() -> None:
    lightness = to_lab(viridis(np.linspace(0, 1, 65)).astype(np.float64), np.eye(3))[:, 0]
    steps = np.diff(lightness)
    assert steps.min() > 0
    assert steps.max() < 1.6 * steps.mean()


def test_places_beyond_the_scale_have_the_colours_of_its_ends() -> None:
    ends = viridis(np.array([-3.0, 0.0, 1.0, 7.0]))
    assert ends[0].tolist() == ends[1].tolist() == [68, 1, 84]
    assert ends[2].tolist() == ends[3].tolist() == [253, 231, 37]


def test_a_blend_of_nothing_is_the_ground() -> None:
    assert blend((255, 0, 0), (0, 0, 255), 0.0) == (0, 0, 255)
    assert blend((255, 0, 0), (0, 0, 255), 1.0) == (255, 0, 0)
