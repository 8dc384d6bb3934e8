"""The memory monitor as a callback."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.memory import MemoryDelta, MemoryOptions
from gradwatch.sinks.protocol import Sink


class MemoryDeltaMonitor(MonitorCallback):
    """Account for memory at the four borders of a step: forward, backward, update.

    Args:
        options: Thresholds of the memory rules.
        sinks: Sinks of your own, beside loggers, console and run record.
    """

    def __init__(self, options: MemoryOptions | None = None, *, sinks: Sequence[Sink] = ()) -> None:
        """Configure; nothing is attached before a fit."""
        super().__init__((MemoryDelta(options),), Configuration(sinks=tuple(sinks)))
