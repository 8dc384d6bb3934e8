"""Any Lightning logger: one call per recorded step and logger, and no row is dropped."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, Protocol, runtime_checkable

from gradwatch.findings import Finding
from gradwatch.readings import Coverage, StepRecord
from gradwatch.sinks.fuse import Fuse, tell
from gradwatch.sinks.keys import LIMIT, Watchlist, init, layer_scalars, update


@runtime_checkable
class MetricsLogger(Protocol):
    """What is asked of a logger; those of both Lightning namespaces have it."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write the metrics as one row."""


Loggers = MetricsLogger | Iterable[MetricsLogger] | Literal[False] | None


class LayerKeys:
    """Choose the per-layer values of each record, knowing the records before it."""

    def __init__(self, limit: int | None = LIMIT) -> None:
        """Start with nothing known; ``limit`` as in `layer_scalars`."""
        self._limit = limit
        # One list per set of layers: two optimizers that take turns have each its own.
        self._lists: dict[tuple[str, ...], Watchlist] = {}

    def scalars(self, record: StepRecord) -> dict[str, float]:
        """Give everything a logger writes for the record: totals and layers."""
        flow = record.flow
        if flow is None:
            return dict(record.scalars)
        known = None
        if self._limit is not None and len(flow.layers) > self._limit:
            known = update(self._lists.get(flow.layers) or init(flow.layers), flow)
            self._lists[flow.layers] = known
        return {**record.scalars, **layer_scalars(flow, self._limit, known)}


class LoggerSink:
    """Write records to loggers, at the step their own x axis counts.

    A logger that raises is told once and switched off; the others go on.
    """

    def __init__(
        self,
        loggers: Loggers,
        *,
        limit: int | None = LIMIT,
        tell: Callable[[str], object] = tell,
    ) -> None:
        """Take the loggers as a Trainer holds them.

        Args:
            loggers: One logger, several, or none (``None``, ``False``).
            limit: Most layers of which each has its series; None writes every layer.
            tell: Is handed the one line about a logger that failed.
        """
        self._keys = LayerKeys(limit)
        self._loggers = [
            (logger, Fuse(f"gradwatch: {type(logger).__name__}", tell)) for logger in _each(loggers)
        ]

    def fuse(self, logger: object) -> Fuse:
        """Give what protects a logger, for others that write to it: it is told once for all.

        Args:
            logger: One of those this sink writes to.
        """
        return next(fuse for known, fuse in self._loggers if known is logger)

    def start(self, coverage: Sequence[Coverage]) -> None:
        """Leave the coverage report to the console and the run record."""

    def record(self, record: StepRecord) -> None:
        """Write totals and layers as one row to each logger."""
        if not self._loggers:
            return
        metrics = self._keys.scalars(record)
        for logger, fuse in self._loggers:
            # A copy each: a logger may add its own keys to what it is handed.
            fuse.run(partial(logger.log_metrics, metrics=dict(metrics), step=record.log_step))

    def finding(self, finding: Finding) -> None:
        """Leave findings to sinks that can show text."""

    def close(self) -> None:
        """Leave the loggers open: they belong to the Trainer."""


def _each(loggers: Loggers) -> list[MetricsLogger]:
    if loggers is None or loggers is False:
        return []
    return [loggers] if isinstance(loggers, MetricsLogger) else list(loggers)
