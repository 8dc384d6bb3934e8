"""A LightningModule's training step without the Trainer it was written for."""

from __future__ import annotations

import contextlib
import importlib
import logging
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_module  # type: ignore[attr-defined]

from gradwatch.callbacks.program import AutomaticProgram, ManualProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

    import lightning.pytorch as pl

    from gradwatch.non_finite.capture import Held
    from gradwatch.non_finite.recipe import Recipe

HALF: Literal["16-mixed"] = "16-mixed"


def bundled_program(module: Any, held: Held, recipe: Recipe) -> AutomaticProgram | ManualProgram:  # noqa: ANN401 - of either namespace
    """Give the program of a training step that was written into a bundle.

    Args:
        module: The LightningModule, its weights loaded.
        held: The micro-batch.
        recipe: How the step is begun.

    Returns:
        A program on the CPU; what the step logs goes nowhere.
    """
    trainer = _stand_in(module, recipe)
    arguments = (held.batch, held.batch_index, 0)[: recipe.arity]
    unscaled = not recipe.scale
    if recipe.kind == "training_step":
        return AutomaticProgram(trainer, arguments, unscaled=unscaled)
    return ManualProgram(trainer, arguments, recipe.optimizer_steps, unscaled=unscaled)


def _stand_in(module: Any, recipe: Recipe) -> pl.Trainer:  # noqa: ANN401
    """Make a Trainer that never fits: its precision, step and logging are all that is asked of it.

    A training step may log and ask for the epoch, the optimizers or the Trainer itself.
    """
    base = next(own for own in type(module).__mro__ if own.__name__ == "LightningModule")
    package = base.__module__.partition(".core")[0]
    with _silent():
        trainer: pl.Trainer = importlib.import_module(package).Trainer(
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accumulate_grad_batches=recipe.divide_by,
            **_precision(recipe),
        )
    trainer.strategy.connect(module)
    module.trainer = trainer
    trainer.state.fn, trainer.training = TrainerFn.FITTING, True
    _count(trainer, recipe)
    # A scheduler may ask for the length of the training, which nobody knows here.
    with contextlib.suppress(Exception):
        trainer.strategy.setup_optimizers(trainer)
    return trainer


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Leave out what a Trainer tells about devices that play no part here."""
    told_by = rank_zero_module.log
    before = told_by.level
    told_by.setLevel(logging.ERROR)
    try:
        yield
    finally:
        told_by.setLevel(before)


def _precision(recipe: Recipe) -> dict[str, Any]:
    if recipe.precision != HALF:
        return {"precision": recipe.precision}
    # Asked for by name, float16 on a CPU becomes bfloat16.
    scaler = torch.amp.GradScaler("cpu", init_scale=recipe.scale or 1.0)
    return {"plugins": [MixedPrecision(HALF, "cpu", scaler)]}


def _count(trainer: pl.Trainer, recipe: Recipe) -> None:
    """Set what ``global_step`` and ``current_epoch`` tell."""
    loop: Any = trainer.fit_loop
    loop.epoch_progress.current.processed = recipe.epoch
    automatic = loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
    manual = loop.epoch_loop.manual_optimization.optim_step_progress
    for progress in (automatic, manual):
        progress.total.completed = recipe.step
