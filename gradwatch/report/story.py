"""A run as its report tells it: gathered from the run record in one pass, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gradwatch.errors import ConfigurationError
from gradwatch.findings import Finding
from gradwatch.health import Signs
from gradwatch.history import History
from gradwatch.readings import StepRecord
from gradwatch.sinks.record_reader import Line, stream
from gradwatch.tables import Table

# Bins of steps: a column of the heatmap stays three pixels wide, and the file small.
COLUMNS = 200
SAID_EVERY_BYTES = 1 << 20
NEVER = datetime.min.replace(tzinfo=timezone.utc)

Progress = Callable[[float], object]


@dataclass(kw_only=True)
class Story:
    """One run, from its first start to its last resumption.

    Attributes:
        path: The run record.
        number: Which run of the record it is, from 1.
        runs: How many runs the record holds.
        headers: Versions, configuration and coverage; one for each start.
        starts: First recorded step of each start that recorded any.
        history: What was recorded, in bins.
        signs: What it showed of its health: recorded steps, the first non-finite one.
        first_step: First recorded optimizer step; None where nothing was recorded.
        last_step: The last one.
        findings: Findings, in order.
        tables: The last table of each name.
        ended: When the last start of the run came to its end, in whatever way; empty where it
            is still running or crashed.
        unreadable: Number of lines that were cut off.
        written: When the record was written to last.
    """

    path: Path
    number: int = 1
    runs: int = 1
    headers: list[Mapping[str, Any]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    history: History = field(default_factory=lambda: History(COLUMNS))
    signs: Signs = field(default_factory=Signs)
    first_step: int | None = None
    last_step: int | None = None
    findings: list[Finding] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    ended: str = ""
    unreadable: int = 0
    written: datetime = NEVER

    def take(self, line: Line) -> None:
        """Take in a line of the record.

        Args:
            line: The line.
        """
        if line.kind == "record":
            self._take_record(line.value)
        elif line.kind == "finding":
            self._take_finding(line.value)
        elif line.kind == "table":
            self.tables[line.value.name] = line.value
        elif line.kind == "unreadable":
            self.unreadable += 1
        else:
            self._take_border(line.kind, line.value)

    def _take_border(self, kind: str, value: Mapping[str, Any]) -> None:
        if kind == "header":
            self.headers.append(value)
        self.ended = str(value.get("time", "")) if kind == "footer" else ""

    def _take_record(self, record: StepRecord) -> None:
        self.signs.record(record)
        self.first_step = record.step if self.first_step is None else self.first_step
        self.last_step = max(record.step, self.last_step or 0)
        if len(self.starts) < len(self.headers):
            self.starts.append(record.step)
        self.history.add(record)

    def _take_finding(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.signs.finding(finding)

    @property
    def records(self) -> int:
        """Number of recorded steps."""
        return self.signs.records

    @property
    def first_bad_step(self) -> int | None:
        """First step that was told or recorded as non-finite; None without one."""
        return self.signs.first_bad_step


def read_story(path: Path, *, run: int | None = None, progress: Progress = lambda _: None) -> Story:
    """Read one run of a run record.

    Args:
        path: The run record.
        run: Which run, from 1; None is the last.
        progress: Is handed the share that is read, from 0 to 1.

    Raises:
        ConfigurationError: If the record has no such run, or is no run record.
    """
    runs, size, said = _Runs(path, run), max(path.stat().st_size, 1), 0
    for line in stream(path):
        if line.end - said >= SAID_EVERY_BYTES:
            said = line.end
            progress(min(said / size, 1.0))
        runs.take(line)
    progress(1.0)
    story = runs.chosen()
    story.written = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    return story


class _Runs:
    """Tell the runs of a record apart, and keep the one that is wanted.

    A later run that logs to the same folder is appended to the same record. It is told from a
    resumed one by where it begins: at the first step again, or further on.
    """

    def __init__(self, path: Path, wanted: int | None) -> None:
        self._path, self._wanted = path, wanted
        self._story = Story(path=path)
        self._kept: Story | None = None
        self._undecided: list[Line] = []

    def take(self, line: Line) -> None:
        if line.kind == "header":
            self._settle(fresh=False)
        elif not self._undecided:
            self._story.take(line)
            return
        self._undecided.append(line)
        if line.kind in {"record", "finding"}:
            begun = self._story.first_step
            self._settle(fresh=begun is not None and line.value.step <= begun)

    def _settle(self, *, fresh: bool) -> None:
        if fresh:
            if self._story.number == self._wanted:
                self._kept = self._story
            self._story = Story(path=self._path, number=self._story.number + 1)
        for line in self._undecided:
            self._story.take(line)
        self._undecided = []

    def chosen(self) -> Story:
        self._settle(fresh=False)
        last, wanted = self._story, self._wanted
        if not (last.headers or last.records or last.findings):
            raise ConfigurationError(
                f"{self._path} is no run record: no line of it can be read as one"
            )
        story = last if wanted in {None, last.number} else self._kept
        if story is None:
            raise ConfigurationError(
                f"{self._path} holds {last.number} run(s), so there is no run {wanted}: "
                f"choose 1 to {last.number}, or leave it out for the last"
            )
        story.runs = last.number
        return story
