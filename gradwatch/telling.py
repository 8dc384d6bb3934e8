"""Tell: hand findings and records to the sinks, and never let one take the run down."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gradwatch.findings import Finding
from gradwatch.sinks.protocol import ProgressSink, ResumableSink, TableSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gradwatch.readings import Coverage, StepRecord
    from gradwatch.sinks.protocol import Sink
    from gradwatch.tables import Table

log = logging.getLogger("gradwatch")


def broken(what: str, error: Exception, step: int) -> Finding:
    """Make the finding that a monitor or a sink failed and is off from now on.

    Args:
        what: Name of the monitor or sink.
        error: What it raised.
        step: Optimizer step.
    """
    return Finding(
        rule="monitor_error",
        layer=what,
        severity="warning",
        step=step,
        summary=f"{what} raised {type(error).__name__} and is switched off; training goes on",
        evidence={"error": str(error)[:200]},
        remedy="report it with the traceback at log level DEBUG of the logger 'gradwatch'",
    )


class Teller:
    """Fan out to sinks; one that raises is told about once and left out from then on.

    Args:
        sinks: The sinks; empty on ranks that do not tell.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        """Start with every sink alive."""
        self.sinks = list(sinks)
        # Kept beyond the end: a checkpoint may be written after the fit.
        self._resumable = [sink for sink in sinks if isinstance(sink, ResumableSink)]

    def start(self, coverage: Sequence[Coverage]) -> None:
        """Hand the coverage report to all sinks."""
        self._each(lambda sink: sink.start(coverage), 0)

    def record(self, record: StepRecord) -> None:
        """Hand a record to all sinks."""
        self._each(lambda sink: sink.record(record), record.step)

    def finding(self, finding: Finding) -> None:
        """Hand a finding to all sinks."""
        self._each(lambda sink: sink.finding(finding), finding.step)

    def table(self, table: Table) -> None:
        """Hand a table to the sinks that show tables."""
        self._each(lambda sink: _show(sink, table), table.step)

    def progress(self, text: str) -> None:
        """Hand a line to the sinks that someone looks at."""
        self._each(lambda sink: _progress(sink, text), 0)

    def close(self) -> None:
        """Close all sinks; from then on nothing is told."""
        self._each(lambda sink: sink.close(), 0)
        self.sinks.clear()

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the sinks that have one, under ``"sinks"``; empty where none has."""
        states: dict[str, Any] = {}
        for sink in self._resumable:
            try:
                states[type(sink).__name__] = sink.state_dict()
            except Exception as error:  # noqa: BLE001, PERF203 - a checkpoint must not fail over it
                log.warning("gradwatch: no state of %s is kept: %s", type(sink).__name__, error)
        return {"sinks": states} if states else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the sinks go on from what `state_dict` gave; one that cannot starts anew.

        Args:
            state: The state of an earlier run.
        """
        states = state.get("sinks", {})
        for sink in self._resumable:
            name = type(sink).__name__
            try:
                sink.load_state_dict(states[name]) if name in states else None
            except Exception as error:  # noqa: BLE001 - no sink keeps a run from resuming
                log.warning("gradwatch: %s starts anew, its state: %r", name, error)

    def _each(self, call: Callable[[Sink], None], step: int) -> None:
        for sink in list(self.sinks):
            try:
                call(sink)
            except Exception as error:  # noqa: PERF203 - each sink fails for itself
                log.debug("sink failed", exc_info=True)
                self.sinks.remove(sink)
                self.finding(broken(type(sink).__name__, error, step))
                if not self.sinks:
                    log.warning("gradwatch: %s failed: %s", type(sink).__name__, error)


def _show(sink: Sink, table: Table) -> None:
    if isinstance(sink, TableSink):
        sink.table(table)


def _progress(sink: Sink, text: str) -> None:
    if isinstance(sink, ProgressSink):
        sink.progress(text)
