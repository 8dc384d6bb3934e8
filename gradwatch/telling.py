"""Tell: hand findings and records to the sinks, and never let one take the run down."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gradwatch.findings import Finding
from gradwatch.sinks.protocol import TableSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

    def close(self) -> None:
        """Close all sinks; from then on nothing is told."""
        self._each(lambda sink: sink.close(), 0)
        self.sinks.clear()

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
