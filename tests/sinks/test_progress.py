"""Whoever looks at a terminal is told how far something has come that training waits for."""

import pytest

from gradwatch import MemorySink
from gradwatch.sinks.console import ConsoleSink
from gradwatch.telling import Teller


class Speechless(MemorySink):
    def progress(self, text: str) -> None:
        raise OSError(text)


def test_a_line_reaches_those_that_someone_looks_at() -> None:
    lines: list[str] = []
    Teller([MemorySink(), ConsoleSink(lines.append)]).progress("2 of 7 tried")
    assert lines == ["gradwatch: 2 of 7 tried"]


def test_a_sink_that_fails_over_it_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    other = MemorySink()
    teller = Teller([Speechless(), other])
    teller.progress("2 of 7 tried")
    assert teller.sinks == [other]
    assert [(each.rule, each.layer) for each in other.findings] == [("monitor_error", "Speechless")]
    assert caplog.records == []
