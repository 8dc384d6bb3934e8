"""The script behind the docs' figures of what is done seldom."""

import re
import sys

import pytest

from tests.benchmarks import seldom


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("graph", r"hooks +\d+ µs a module.*\nwalk +\d+ µs a node"),
        ("live", r"live +\d+\.\d+ s with 1,000 objects"),
        ("pictures", r"layers.*heatmap(.*\n +\d+( +\d+\.\d ms){4} +\d+ to \d+ of 6){2}"),
    ],
)
def test_it_prints_a_figure(
    part: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(seldom, "OBJECTS", 1000)
    monkeypatch.setattr(seldom, "LAYERS", (3, 12))
    monkeypatch.setattr(seldom, "ROUNDS", 1)
    monkeypatch.setattr(sys, "argv", ["seldom.py", part])
    seldom.main()
    assert re.match(told, capsys.readouterr().out.lstrip())
