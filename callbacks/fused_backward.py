"""Fused backward layers as a callback."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.part import FusedBackward as FusedBackwardPart
from gradwatch.sinks.protocol import Sink


class FusedBackward(MonitorCallback):
    """Try fused backward layers once, and keep those that are right and make the step faster.

    After a few steps it is found which layers a fused one could take the place of, those that a
    profile shows to be bound by arithmetic left out. Each kind of change is proved on a live
    micro-batch, measured against the stock layers, and kept or rolled back. Training state is not
    touched by the trial. At the end of the fit the stock forwards are back.

    Args:
        options: When fused layers are tried and kept.
        sinks: Sinks of your own, beside loggers, console and run record.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[FusedBackward()], logger=False, accelerator="cpu")
        >>> trainer.callbacks[0].parts[0].options.mode
        'auto'
    """

    def __init__(
        self, options: FusedBackwardOptions | None = None, *, sinks: Sequence[Sink] = ()
    ) -> None:
        """Configure; nothing is attached before a fit."""
        super().__init__((FusedBackwardPart(options),), Configuration(sinks=tuple(sinks)))
