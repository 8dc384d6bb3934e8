"""The roofline profile as a callback."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.roofline import Profile, RooflineOptions
from gradwatch.roofline.part import Roofline
from gradwatch.sinks.protocol import Sink


class RooflineMonitor(MonitorCallback):
    """Profile a few steady steps: where the time goes and what bounds each layer.

    Looks once in a fit, by default at the nine steps after the first ten, and is off again.

    Args:
        options: Which steps are looked at.
        sinks: Sinks of your own, beside loggers, console and run record.
    """

    def __init__(
        self, options: RooflineOptions | None = None, *, sinks: Sequence[Sink] = ()
    ) -> None:
        """Configure; nothing is attached before a fit."""
        self._roofline = Roofline(options)
        super().__init__((self._roofline,), Configuration(sinks=tuple(sinks)))

    @property
    def profile(self) -> Profile | None:
        """The profile of the present or last fit; None until it is done."""
        return self._roofline.profile
