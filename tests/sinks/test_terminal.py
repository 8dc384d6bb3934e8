"""Progress bars stay whole: a real training on a terminal that is emulated."""

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as pl
import pyte
import pytest
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from tqdm import tqdm

from gradwatch import NonFiniteOptions
from gradwatch.callbacks import GradWatch
from gradwatch.sinks import ConsoleSink
from gradwatch.sinks.bars import say
from gradwatch.sinks.fuse import tell
from tests.kit import Net, build, fit, make_loader

WIDTH, HEIGHT = 100, 200
BARS: dict[str, Callable[..., pl.Callback]] = {"rich": RichProgressBar, "tqdm": TQDMProgressBar}


class Terminal(io.TextIOBase):
    """Emulate what a person sees."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._screen = pyte.Screen(WIDTH, HEIGHT)
        self._stream = pyte.Stream(self._screen)

    def write(self, text: str) -> int:
        # A terminal in its usual mode goes to the first column with each new line.
        self._stream.feed(text.replace("\n", "\r\n"))
        return len(text)

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display if line.strip()]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": WIDTH, "LINES": HEIGHT, "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, str(value))
    # What Lightning logs goes to wherever its handlers have been looking since its import.
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "disabled", True)


@contextlib.contextmanager
def emulated() -> Iterator[Terminal]:
    """Put a terminal in the place of both streams; within a test, since pytest has its own."""
    terminal = Terminal()
    with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
        yield terminal


def train(bar: str, *, spoil: list[int]) -> tuple[list[str], list[str]]:
    """Train on a terminal; give what was told and the lines that stand there at the end."""
    told: list[str] = []
    beside = ConsoleSink(told.append, width=WIDTH)
    watch = GradWatch(
        non_finite=NonFiniteOptions(policy="skip"), record=False, memory=False, sinks=[beside]
    )
    options: dict[str, Any] = {"enable_progress_bar": True, "log_every_n_steps": 1}
    with emulated() as terminal:
        fit(build(Net), [BARS[bar](refresh_rate=1), watch], make_loader(spoil=spoil), **options)
    return told, terminal.lines


@pytest.mark.parametrize("bar", BARS)
def test_what_is_told_stands_beside_the_bar_and_both_are_whole(bar: str) -> None:
    told, lines = train(bar, spoil=[6])
    blocks = [[line for line in block.splitlines() if line.strip()] for block in told]
    assert [block[0].split(":")[0] for block in blocks] == [
        "gradwatch watches 5 of 5 layers",
        "gradwatch error",
        "gradwatch",
    ]
    assert [line for block in blocks for line in block if line not in lines] == []
    bars = [line for line in lines if line.startswith("Epoch")]
    assert any("7/7" in line for line in bars)
    assert [line for line in bars if "gradwatch" in line] == []


@pytest.mark.parametrize("bar", BARS)
def test_a_healthy_run_is_silent_between_its_first_line_and_its_last_table(bar: str) -> None:
    told, _ = train(bar, spoil=[])
    assert len(told) == 2
    assert len(told[1].splitlines()) <= 20


def test_a_plain_loops_own_bar_stays_whole() -> None:
    with emulated() as terminal:
        for number in tqdm(range(4), ascii=True):
            if number == 2:
                say("gradwatch says this\nin two lines")
    assert terminal.lines[:2] == ["gradwatch says this", "in two lines"]
    assert "4/4" in terminal.lines[2]


def test_a_failure_is_told_beside_the_bar() -> None:
    log = logging.getLogger("gradwatch")
    with emulated() as terminal:
        handler = logging.StreamHandler(terminal)
        log.addHandler(handler)
        for number in tqdm(range(4), ascii=True):
            if number == 2:
                tell("gradwatch: the logger is switched off")
        log.removeHandler(handler)
    assert terminal.lines[0] == "gradwatch: the logger is switched off"
    assert "4/4" in terminal.lines[1]
