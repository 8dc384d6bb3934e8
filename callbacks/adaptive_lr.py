"""The adaptive learning rate as a callback."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch import adaptive_lr
from gradwatch.adaptive_lr import AdaptiveLearningRateOptions
from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.sinks.protocol import Sink


class AdaptiveLearningRate(MonitorCallback):
    """Let the learning rate follow the ratio of weights to gradients, SNR = ‖θ‖/‖g‖.

    Args:
        options: Rule, target, bounds, averaging and warm-up.
        sinks: Sinks of your own, beside loggers, console and run record.
    """

    def __init__(
        self, options: AdaptiveLearningRateOptions | None = None, *, sinks: Sequence[Sink] = ()
    ) -> None:
        """Configure; nothing is attached before a fit."""
        super().__init__(
            (adaptive_lr.AdaptiveLearningRate(options),), Configuration(sinks=tuple(sinks))
        )
