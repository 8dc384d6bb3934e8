"""How a Trainer's batches are loaded, for the parts that judge it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwatch.roofline.part import Roofline
from gradwatch.symptoms import loading_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lightning.pytorch as pl

    from gradwatch.parts import Part


def tell_loading(parts: Sequence[Part], trainer: pl.Trainer) -> None:
    """Tell the roofline among some parts how the Trainer's batches are loaded.

    Args:
        parts: A callback's.
        trainer: Its loaders set up.
    """
    for part in parts:
        if isinstance(part, Roofline):
            part.loading = loading_of(trainer.train_dataloader, trainer.strategy.root_device)
