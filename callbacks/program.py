"""How Lightning runs one micro-batch again, and what must not notice it."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from gradwatch.layers import unwrapped
from gradwatch.non_finite.program import Roots, each_root
from gradwatch.non_finite.recipe import Kind, Recipe
from gradwatch.undo import Undo, patch_instance

if TYPE_CHECKING:
    from collections.abc import Iterator

    import lightning.pytorch as pl


class AutomaticProgram:
    """The training step and backward of automatic optimization.

    Args:
        trainer: The Trainer.
        arguments: What the training step is called with.
        unscaled: Leave the gradient scaler's factor out.
    """

    def __init__(self, trainer: pl.Trainer, arguments: tuple[Any, ...], *, unscaled: bool) -> None:
        """Keep what the run needs."""
        self._trainer, self._arguments, self._unscaled = trainer, arguments, unscaled

    def forward(self) -> Tensor:
        """Run the training step as the strategy does; the loss as it goes into the backward."""
        module = self._trainer.lightning_module
        with _unnoticed(self._trainer), self._trainer.precision_plugin.train_step_context():
            output = module.training_step(*self._arguments)
        loss = _loss_of(output)
        if loss is None:
            message = "the training step returned no loss when it was run again"
            raise ValueError(message)
        loss = loss / self._trainer.accumulate_grad_batches
        return loss if self._unscaled else _scaled(self._trainer, loss)

    def backward(self, roots: Roots) -> None:
        """Run the module's own backward, without the strategy's callbacks."""
        (loss,) = each_root(roots)
        self._trainer.lightning_module.backward(loss)

    def recipe(self) -> Recipe:
        """Say how the training step is run without this Trainer."""
        arity = len(self._arguments)
        return recipe_of(self._trainer, "training_step", arity=arity, unscaled=self._unscaled)


class _Stopped(BaseException):
    """Ends a manual training step at the optimizer step that failed."""


class ManualProgram:
    """The training step of manual optimization, up to the optimizer step that failed.

    Earlier optimizer steps of the batch run their closure and change nothing: the weights
    already hold their effect.

    Args:
        trainer: The Trainer.
        arguments: What the training step is called with.
        steps: Optimizer steps of the batch, the failing one included.
        unscaled: Leave the gradient scaler's factor out.
    """

    def __init__(
        self, trainer: pl.Trainer, arguments: tuple[Any, ...], steps: int, *, unscaled: bool
    ) -> None:
        """Keep what the run needs."""
        self._trainer, self._arguments, self._unscaled = trainer, arguments, unscaled
        self._stop_at, self._begun = steps, 0
        self._loss: Tensor | None = None

    def forward(self) -> Tensor:
        """Run the training step, its backwards included, and give the last loss."""
        self._begun, self._loss = 0, None
        half = self._trainer.precision_plugin.train_step_context()
        for parameter, trains in _toggled(self._trainer).items():
            parameter.requires_grad_(trains)
        with _unnoticed(self._trainer), self._muted(), contextlib.suppress(_Stopped), half:
            self._trainer.lightning_module.training_step(*self._arguments)
        if self._loss is None:
            message = "the training step ran no backward when it was run again"
            raise ValueError(message)
        return self._loss

    def backward(self, roots: Roots) -> None:
        """Do nothing: the training step has run its backwards itself."""

    def recipe(self) -> Recipe:
        """Say how the training step is run without this Trainer."""
        known = recipe_of(
            self._trainer, "manual", arity=len(self._arguments), unscaled=self._unscaled
        )
        names = self._trainer.lightning_module.named_parameters()
        off = {each for each, trains in _toggled(self._trainer).items() if trains}
        toggled = [unwrapped(name) for name, each in names if each in off]
        return replace(known, optimizer_steps=self._stop_at, toggled=toggled)

    @contextlib.contextmanager
    def _muted(self) -> Iterator[None]:
        strategy = self._trainer.strategy
        with ExitStack() as stack:
            stack.callback(patch_instance(strategy, "optimizer_step", self._step))
            stack.callback(patch_instance(strategy, "backward", self._backward))
            stack.callback(_schedulers_restored(self._trainer))
            yield

    def _step(self, _optimizer: object, closure: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._begun += 1
        if closure is not None:
            closure()
        if self._begun >= self._stop_at:
            raise _Stopped

    def _backward(self, loss: Tensor, _optimizer: object, *args: Any, **kwargs: Any) -> None:
        self._loss = loss if self._unscaled else _scaled(self._trainer, loss)
        torch.autograd.backward(self._loss, *args, **kwargs)


def _config(module: pl.LightningModule) -> dict[str, Any]:
    """Give what the module was made with, as far as it says; names of Lightning's own left out."""
    own = module.hparams
    known = own.items() if isinstance(own, Mapping) else ()
    return {name: value for name, value in known if not name.startswith("_")}


def _toggled(trainer: pl.Trainer) -> dict[Tensor, bool]:
    """Tell for which parameters a toggled optimizer has set aside whether they train."""
    states: Any = trainer.lightning_module._param_requires_grad_state  # noqa: SLF001 - no public way
    return dict(states)


def recipe_of(trainer: pl.Trainer, kind: Kind, *, arity: int, unscaled: bool) -> Recipe:
    """Say how a training step is run without its Trainer.

    Args:
        trainer: The Trainer.
        kind: Automatic or manual optimization.
        arity: Number of arguments of the training step.
        unscaled: Leave the gradient scaler's factor out.
    """
    scaler: torch.amp.GradScaler | None = getattr(trainer.precision_plugin, "scaler", None)
    scaled = scaler is not None and scaler.is_enabled() and not unscaled
    return Recipe(
        kind=kind,
        arity=arity,
        divide_by=trainer.accumulate_grad_batches if kind == "training_step" else 1,
        scale=scaler.get_scale() if scaler is not None and scaled else 0.0,
        precision=str(trainer.precision),
        step=trainer.global_step,
        epoch=trainer.current_epoch,
        config=_config(trainer.lightning_module),
    )


def _schedulers_restored(trainer: pl.Trainer) -> Undo:
    undo = Undo()
    for config in trainer.lr_scheduler_configs:
        saved = copy.deepcopy(config.scheduler.state_dict())
        undo.add(functools.partial(config.scheduler.load_state_dict, saved))
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            own = {name: value for name, value in group.items() if name != "params"}
            undo.add(functools.partial(group.update, own))
    return undo


def _loss_of(output: Tensor | Mapping[str, Any] | None) -> Tensor | None:
    return output if output is None or isinstance(output, Tensor) else output.get("loss")


def _scaled(trainer: pl.Trainer, loss: Tensor) -> Tensor:
    scaler: torch.amp.GradScaler | None = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None or not scaler.is_enabled():
        return loss
    return scaler.scale(loss)


@contextlib.contextmanager
def _unnoticed(trainer: pl.Trainer) -> Iterator[None]:
    """Keep Lightning's logging and progress from noticing a second run of a training step."""
    module, loop = trainer.lightning_module, trainer.fit_loop.epoch_loop
    connector = trainer._logger_connector  # noqa: SLF001 - who logged last decides what it resets
    with ExitStack() as stack:
        results = copy.copy(loop._results)  # noqa: SLF001 - what self.log writes into
        results.clear()
        stack.callback(patch_instance(loop, "_results", results))
        stack.callback(patch_instance(module, "_current_fx_name", "training_step"))
        dummies = [DummyLogger() for _ in trainer.loggers]
        stack.callback(patch_instance(trainer, "_loggers", dummies))
        stack.callback(patch_instance(trainer, "should_stop", trainer.should_stop))
        stack.callback(patch_instance(connector, "_current_fx", connector._current_fx))  # noqa: SLF001
        yield
