"""Lightning's Trainer as the loop around a session."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from gradwatch.callbacks.program import AutomaticProgram, ManualProgram
from gradwatch.closures import evaluates_again
from gradwatch.findings import OPTIMIZER
from gradwatch.host import RUNS, WEIGHTS_ARE_BAD, Clock, Scale

if TYPE_CHECKING:
    import lightning.pytorch as pl
    import torch
    from torch import Tensor
    from torch.optim import Optimizer

    from gradwatch.findings import Finding
    from gradwatch.non_finite.capture import Held
    from gradwatch.non_finite.program import Program
    from gradwatch.session import Session

NORM_EPSILON = 1e-6
ITERATOR_STEP = "training_step(dataloader_iter) takes its batches itself"
MOVED = (
    "  intact    not promised: this optimizer evaluates its closure several times a step, so "
    "the weights may have moved within it; resume from an earlier checkpoint"
)


class LightningHost:
    """Answer a session's questions from the Trainer.

    Holds the Trainer weakly, so that a copy or pickle of the callback does not drag it along.

    Args:
        trainer: The Trainer, of either namespace.
        checkpoint: Whether intact weights are kept when training is stopped.

    Attributes:
        keeps_checkpoint: Whether intact weights are kept when training is stopped.
        arity: Number of arguments of the last training step.
        steps_in_batch: Optimizer steps begun in the present batch.
    """

    def __init__(self, trainer: pl.Trainer, *, checkpoint: bool) -> None:
        """Keep a weak reference."""
        self._trainer = weakref.ref(trainer)
        self._moves_within = any(evaluates_again(own) for own in trainer.optimizers)
        dry = bool(getattr(trainer, "fast_dev_run", False))
        self.keeps_checkpoint = checkpoint and not self._moves_within and not dry
        self.arity = 2
        self.steps_in_batch = 0

    @property
    def trainer(self) -> pl.Trainer:
        """The Trainer, as long as it lives."""
        trainer = self._trainer()
        if trainer is None:
            message = "the Trainer this callback was attached to is gone"
            raise ReferenceError(message)
        return trainer

    def clock(self) -> Clock:
        """Tell step, logger axis and batch index."""
        loop = self.trainer.fit_loop.epoch_loop
        x_axis = loop._batches_that_stepped  # noqa: SLF001 - the step Lightning logs at
        return Clock(self.trainer.global_step, x_axis, loop.batch_idx)

    def is_logged(self, log_step: int) -> bool:
        """Follow the Trainer's own ``log_every_n_steps``."""
        interval: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        return interval > 0 and (log_step + 1) % interval == 0

    def manual_loss(self, session: Session, loss: Tensor) -> None:
        """Hand the loss of a manual backward on, where no scale hides its true value."""
        if getattr(self.trainer.precision_plugin, "scaler", None) is None:
            session.observe_loss(loss)

    def optimizer_name(self, optimizer: Optimizer) -> str:
        """Number the optimizers where there are several."""
        optimizers = self.trainer.optimizers
        if len(optimizers) <= 1:
            return ""
        return f"opt{next((i for i, held in enumerate(optimizers) if held is optimizer), 0)}"

    def scale(self, optimizer: Optimizer) -> Scale | None:
        """Take the scaler's tensor as it is: ``get_scale()`` would wait for the device."""
        scaler: torch.amp.GradScaler | None = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is None or not scaler.is_enabled() or scaler._scale is None:
            return None
        unscales_itself = getattr(optimizer, "_step_supports_amp_scaling", False)
        return Scale(scaler._scale, in_gradients=unscales_itself)

    def clipped_norm(self, norm: float) -> float | None:
        """Derive the norm after Lightning's own norm clipping from its coefficient."""
        limit = self.trainer.gradient_clip_val
        if not limit or self._clips_otherwise():
            return None
        return norm * min(1.0, float(limit) / (norm + NORM_EPSILON))

    def measures_clipped(self) -> bool:
        """Tell whether something clips in a way that can only be seen after the update."""
        return self._clips_otherwise()

    def _clips_otherwise(self) -> bool:
        module = self.trainer.lightning_module
        name = "configure_gradient_clipping"
        base = next(cls for cls in type(module).__mro__ if cls.__name__ == "LightningModule")
        own = getattr(type(module), name) is not getattr(base, name)
        by_value = str(self.trainer.gradient_clip_algorithm or "norm").rpartition(".")[2].lower()
        return own or (bool(self.trainer.gradient_clip_val) and by_value == "value")

    def program(self, held: Held, *, unscaled: bool) -> Program | str:
        """Give the micro-batch's program, or the reason why it cannot be run again."""
        module = self.trainer.lightning_module
        if self.arity == 1 and _takes_iterator(module):
            return ITERATOR_STEP
        arguments = (held.batch, held.batch_index, 0)[: self.arity]
        if module.automatic_optimization:
            return AutomaticProgram(self.trainer, arguments, unscaled=unscaled)
        return ManualProgram(self.trainer, arguments, self.steps_in_batch, unscaled=unscaled)

    def checkpoint_path(self, step: int) -> Path:
        """Give the path intact weights are kept under."""
        return self._folder() / f"before-step-{step}.ckpt"

    def bundle_folder(self) -> Path | None:
        """Put bundles beside the run record; none in a dry run."""
        return None if getattr(self.trainer, "fast_dev_run", False) else self._folder()

    def _folder(self) -> Path:
        return Path(self.trainer.log_dir or self.trainer.default_root_dir) / RUNS

    def announce_checkpoint(self, finding: Finding) -> str:
        """Say where the intact weights go, for the error message."""
        if finding.layer == OPTIMIZER:
            return WEIGHTS_ARE_BAD
        if self._moves_within:
            return MOVED
        if not self.keeps_checkpoint:
            return ""
        path = self.checkpoint_path(finding.step)
        return f"  intact    weights from before this step: {path} (resumes at this batch)"


def _takes_iterator(module: pl.LightningModule) -> bool:
    return "dataloader_iter" in module.training_step.__code__.co_varnames
