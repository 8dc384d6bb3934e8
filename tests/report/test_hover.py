"""What travels with a picture for the pointer is what was measured, within one percent."""

import base64
import io
import zlib
from typing import Any

import numpy as np
import PIL.Image
import pytest

from gradwatch.report.hover import MARKS, Series, pack_grid, pack_series, row_names
from gradwatch.report.png import as_png

Grids = tuple[Any, Any, Any]


def unpack(packed: dict[str, Any], rows: int, columns: int) -> Grids:
    """Read a grid back as the page does: smallest, largest, marks."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["packed"])), np.uint8)
    a, b, c, d, marks = planes.reshape(5, rows, columns).astype(np.int64)
    low, high = a + 256 * b, a + 256 * b + c + 256 * d
    return (*(value(codes, packed) for codes in (low, high)), marks)


def value(codes: Any, packed: dict[str, Any]) -> Any:
    known = np.where(codes == 1, 0.0, 10 ** (packed["base"] + (codes - 2) * packed["step"]))
    return np.where(codes == 0, np.nan, known)


def pack(low: Any, high: Any, **options: Any) -> dict[str, Any]:
    shape = np.shape(low)
    off = np.zeros(shape, np.bool_)
    usual: dict[str, Any] = {"bad": off, "zero": off, "rows": [(i, i) for i in range(shape[0])]}
    return pack_grid(np.asarray(low), np.asarray(high), **{**usual, **options})


@pytest.mark.parametrize("decades", [0.0, 1.0, 80.0])
def test_a_packed_grid_is_within_half_a_percent(decades: float) -> None:
    draw = np.random.default_rng(0)
    low = 10 ** draw.uniform(-decades / 2, decades / 2, (7, 5))
    high = low * 10 ** draw.uniform(0, 1, (7, 5))
    read_low, read_high, marks = unpack(pack(low, high), 7, 5)
    np.testing.assert_allclose(read_low, low, rtol=0.005)
    np.testing.assert_allclose(read_high, high, rtol=0.005)
    assert not marks.any()


def test_zeros_and_absent_numbers_stay_what_they_are() -> None:
    low, high = [[0.0, np.nan, 0.0]], [[0.0, np.nan, 3.0]]
    read_low, read_high, _ = unpack(pack(low, high), 1, 3)
    np.testing.assert_array_equal(read_low, low)
    np.testing.assert_allclose(read_high, high, rtol=0.005)


def test_marks_and_extremes_of_layers_that_share_a_row_are_all_kept() -> None:
    low = np.asarray([[1.0], [np.nan], [0.5], [7.0]])
    bad = np.asarray([[False], [True], [False], [False]])
    zero = np.asarray([[False], [False], [False], [True]])
    packed = pack(low, low * 2, bad=bad, zero=zero, rows=[(0, 1), (2, 3)])
    read_low, read_high, marks = unpack(packed, 2, 1)
    np.testing.assert_allclose(read_low[:, 0], [1, 0.5], rtol=0.005)
    np.testing.assert_allclose(read_high[:, 0], [2, 14], rtol=0.005)
    assert [[MARKS[bit] for bit in (0, 1) if mark >> bit & 1] for mark in marks[:, 0]] == [
        ["NaN or Inf seen"],
        ["exactly zero seen"],
    ]


def test_lines_come_back_with_their_gaps() -> None:
    low, high = np.asarray([1.5, np.nan, -3.0]), np.asarray([2.5, np.nan, 4.0])
    packed = pack_series([Series("one", low, high), Series("two", -high, -low)])
    values = np.frombuffer(zlib.decompress(base64.b64decode(packed["packed"])), "<f4")
    np.testing.assert_array_equal(values.reshape(4, 3), [low, high, -high, -low])
    assert packed["series"] == ["one", "two"]


def test_a_row_of_several_layers_is_named_by_its_ends() -> None:
    assert row_names(("a", "b", "c"), [(0, 1), (2, 2)]) == ["a to b (2 layers)", "c"]


GRAYS = [(level, level, level) for level in range(0, 256, 5)]


@pytest.mark.parametrize("colours", [60, GRAYS])
def test_a_single_pixel_of_a_colour_that_means_something_stays_exact(colours: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3)).astype(np.uint8)
    pixels[17, 23] = (255, 0, 255)
    png = as_png(PIL.Image.fromarray(pixels), colours, [(255, 0, 255), (1, 2, 3)])
    read = np.asarray(PIL.Image.open(io.BytesIO(png)).convert("RGB"))
    assert tuple(read[17, 23]) == (255, 0, 255)
    assert len(np.unique(read.reshape(-1, 3), axis=0)) <= 62


def test_a_picture_in_given_colours_gets_the_nearest_of_them() -> None:
    pixels = np.asarray([[(0, 0, 0), (99, 101, 98), (251, 255, 255)]], np.uint8)
    read = PIL.Image.open(io.BytesIO(as_png(PIL.Image.fromarray(pixels), GRAYS)))
    assert np.asarray(read.convert("RGB"))[0, :, 0].tolist() == [0, 100, 255]
