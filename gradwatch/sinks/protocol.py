"""The protocol a sink fulfils: four methods, more for tables, progress, and to be resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradwatch.findings import Finding
    from gradwatch.readings import Coverage, StepRecord
    from gradwatch.tables import Table


class Sink(Protocol):
    """Is handed what was measured and found; called on rank 0 only."""

    def start(self, coverage: Sequence[Coverage]) -> None:
        """Take the coverage report; called once, when the first step has shown it."""

    def record(self, record: StepRecord) -> None:
        """Take one recorded step (first, last, and each logging step)."""

    def finding(self, finding: Finding) -> None:
        """Take one finding, as soon as it is known."""

    def close(self) -> None:
        """Flush what is left; called once at the end, also after an exception."""


@runtime_checkable
class TableSink(Protocol):
    """What a sink has on top that shows tables: the profile's layers, the trials."""

    def table(self, table: Table) -> None:
        """Take one table; it replaces an earlier one of its name."""


@runtime_checkable
class ProgressSink(Protocol):
    """What a sink has on top that someone looks at while training waits."""

    def progress(self, text: str) -> None:
        """Take a line on how far something has come that takes its time."""


@runtime_checkable
class ResumableSink(Protocol):
    """What a sink has on top that must not begin anew in a resumed run: alerts were sent."""

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed run needs; primitives only."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
