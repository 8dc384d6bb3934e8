"""Text is literal and cut to its room; shapes stay within their rectangle."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from gradwatch.pictures import LIGHT, lettering
from gradwatch.pictures.canvas import Canvas, Layer, Rect
from gradwatch.pictures.lettering import cut, literal, shorten, text_width


@pytest.mark.parametrize("text", ["a", "blocks.0.attn.q_proj", "м" * 90, "x" * 2000])
@pytest.mark.parametrize("pixels", [10, 60, 200])
def test_a_name_is_cut_to_its_room_and_keeps_its_end(text: str, pixels: int) -> None:
    shown = shorten(text, pixels)
    assert text_width(shown) <= max(pixels, text_width("…"))
    assert text.endswith(shown.removeprefix("…"))
    assert (shown == text) == (text_width(text) <= pixels)


def test_words_keep_their_beginning() -> None:
    assert cut("addmm, gelu, dropout", 80).startswith("addmm")
    assert cut("addmm, gelu, dropout", 80).endswith("…")


def test_what_cannot_be_printed_is_escaped() -> None:
    assert literal("a\nb\x00\udcff") == r"a\nb\x00\udcff"


def test_shapes_are_clipped_to_their_rectangle() -> None:
    drawn, rect = Canvas(60, 60, LIGHT), Rect(20, 20, 40, 40)
    layer = Layer(rect)
    layer.line([(-100, 30), (200, 30)], 4)
    layer.circle((40, 40), 15)
    layer.polygon([(0, 0), (60, 0), (0, 60)])
    drawn.put(layer, (255, 0, 0))
    changed = (np.asarray(drawn.image) != 255).any(axis=2)
    assert changed[20:40, 20:40].any()
    assert not changed[:20].any()
    assert not changed[40:].any()
    assert not changed[:, :20].any()
    assert not changed[:, 40:].any()


def test_shapes_beyond_their_rectangle_are_not_drawn() -> None:
    drawn, layer = Canvas(60, 60, LIGHT), Layer(Rect(20, 20, 40, 40))
    layer.circle((200, 200), 3)
    drawn.put(layer, (255, 0, 0))
    assert (np.asarray(drawn.image) == 255).all()


def test_an_edge_is_smooth() -> None:
    drawn, layer = Canvas(40, 40, LIGHT), Layer(Rect(0, 0, 40, 40))
    layer.line([(2, 3), (38, 30)], 2)
    drawn.put(layer, (0, 0, 0))
    assert len(np.unique(np.asarray(drawn.image)[:, :, 0])) > 5


def test_without_a_font_of_matplotlibs_signs_are_spelt_in_ascii(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_none(_: str) -> None:
        return None

    try:
        for function in (lettering.font, lettering._font_path, text_width):
            function.cache_clear()
        monkeypatch.setattr(importlib.util, "find_spec", find_none)
        assert literal("10 ≥ 9 – слой") == "10 >= 9 - \\u0441\\u043b\\u043e\\u0439"
        assert lettering.power(-3) == "1e-3"
        drawn = Canvas(200, 40, LIGHT)
        drawn.text((5, 20), "× …")
        assert (np.asarray(drawn.image) < 128).any()
    finally:
        for function in (lettering.font, lettering._font_path, text_width):
            function.cache_clear()


def test_no_plotting_library_is_imported() -> None:
    program = """
import importlib.util
import subprocess
import sys
from gradwatch.history import History
from gradwatch.pictures import gallery, heatmap
heatmap(History())
assert "matplotlib" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""
