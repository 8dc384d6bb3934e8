"""The in-memory sink: what gradwatch's own tests use, for users' tests too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwatch.findings import Finding
    from gradwatch.readings import Coverage, StepRecord
    from gradwatch.tables import Table


class MemorySink:
    """Keep everything in lists.

    Attributes:
        coverage: The coverage report, empty until the first step.
        records: Recorded steps, in order.
        findings: Findings, in order.
        tables: Tables, in order.
        closed: Number of times the sink was closed.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.coverage: list[Coverage] = []
        self.records: list[StepRecord] = []
        self.findings: list[Finding] = []
        self.tables: list[Table] = []
        self.closed = 0

    def start(self, coverage: Sequence[Coverage]) -> None:
        """Keep the coverage report."""
        self.coverage = list(coverage)

    def record(self, record: StepRecord) -> None:
        """Keep a record."""
        self.records.append(record)

    def finding(self, finding: Finding) -> None:
        """Keep a finding."""
        self.findings.append(finding)

    def table(self, table: Table) -> None:
        """Keep a table."""
        self.tables.append(table)

    def close(self) -> None:
        """Count the call."""
        self.closed += 1
