"""The non-finite monitor as a callback."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.non_finite.monitor import NonFinite
from gradwatch.non_finite.policy import NonFiniteOptions
from gradwatch.session_options import SessionOptions
from gradwatch.sinks.protocol import Sink


class NonFiniteMonitor(MonitorCallback):
    """Stop, skip or tell before the weights take a non-finite gradient in, and name the layer.

    Args:
        options: Policy and patience.
        measuring: How backward hooks are set and how much may be held for a replay.
        sinks: Sinks of your own, beside loggers, console and run record.
    """

    def __init__(
        self,
        options: NonFiniteOptions | None = None,
        *,
        measuring: SessionOptions | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        """Configure; nothing is attached before a fit."""
        part = NonFinite(options)
        configuration = Configuration(
            sinks=tuple(sinks),
            options=measuring or SessionOptions(),
            checkpoint=part.options.checkpoint,
        )
        super().__init__((part,), configuration)
