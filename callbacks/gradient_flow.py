"""The gradient-flow monitor as a callback."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.gradient_flow import GradientFlow, GradientFlowOptions
from gradwatch.sinks.protocol import Sink


class GradientFlowMonitor(MonitorCallback):
    """Watch the per-layer gradient norms and say where the gradient dies or explodes.

    Args:
        options: Thresholds, patience and the layers to judge.
        sinks: Sinks of your own, beside loggers, console and run record.
    """

    def __init__(
        self, options: GradientFlowOptions | None = None, *, sinks: Sequence[Sink] = ()
    ) -> None:
        """Configure; nothing is attached before a fit."""
        super().__init__((GradientFlow(options),), Configuration(sinks=tuple(sinks)))
