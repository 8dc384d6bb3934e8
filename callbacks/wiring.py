"""Attach a session to a Trainer where callbacks have no event, with one undo."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gradwatch.errors import ConfigurationError
from gradwatch.undo import Undo, patch_instance

if TYPE_CHECKING:
    from collections.abc import Callable

    import lightning.pytorch as pl
    from torch.optim import Optimizer

    from gradwatch.callbacks.host import LightningHost
    from gradwatch.session import Session

IN_PLACE_TRAP = "BackwardHookFunction"
IN_PLACE_LESSON = (
    'backward_hooks="module" sets torch\'s own full backward hooks, whose outputs are views '
    "that may not be modified in place, and this model does so (ReLU(inplace=True), x += y). "
    'Use backward_hooks="sampled" or "every_step": those taps bear in-place operations'
)


def attach(trainer: pl.Trainer, session: Session, host: LightningHost) -> Undo:
    """Wrap the training step, hook the optimizers, and undo it all at the end or on an error.

    Args:
        trainer: The Trainer, its optimizers set up.
        session: The session to tell.
        host: Learns how the training step is called.

    Returns:
        The undo of all of it.
    """
    undo, strategy = Undo(), trainer.strategy
    step = _watched_step(strategy.training_step, session, host)
    undo.add(patch_instance(strategy, "training_step", step))
    moved = _watched_transfer(strategy.batch_to_device, session, trainer)
    undo.add(patch_instance(strategy, "batch_to_device", moved))
    for optimizer in trainer.optimizers:
        hook = functools.partial(_stepped, session)
        undo.add(optimizer.register_step_post_hook(hook).remove)

    def let_go() -> None:
        session.finish()
        undo()

    loop = trainer.fit_loop
    undo.add(patch_instance(loop, "run", _undone_on_error(loop.run, let_go)))
    undo.add(patch_instance(strategy, "teardown", _undone_before(strategy.teardown, let_go)))
    return undo


def _undone_on_error(inner: Callable[[], Any], let_go: Callable[[], None]) -> Callable[[], Any]:
    """Lightning forgets us on an error where an earlier callback's `on_exception` raises."""

    def run() -> Any:  # noqa: ANN401 - Lightning's signature
        try:
            return inner()
        except BaseException:
            let_go()
            raise

    return run


def _undone_before(inner: Callable[[], None], let_go: Callable[[], None]) -> Callable[[], None]:
    def teardown() -> None:
        let_go()
        inner()

    return teardown


def _stepped(session: Session, optimizer: Optimizer, *_: object) -> None:
    session.after_step(optimizer)


def _watched_transfer(
    inner: Callable[..., Any], session: Session, trainer: pl.Trainer
) -> Callable[..., Any]:
    def batch_to_device(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Lightning's signature
        if not trainer.training:
            return inner(*args, **kwargs)
        session.transfer("before_transfer")
        batch = inner(*args, **kwargs)
        session.transfer("after_transfer")
        return batch

    return batch_to_device


def _watched_step(
    inner: Callable[..., Any], session: Session, host: LightningHost
) -> Callable[..., Any]:
    def training_step(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Lightning's signature
        host.arity, host.steps_in_batch = len(args), 0
        session.begin_micro_batch(args[0], _batch_index(args, host))
        try:
            output = inner(*args, **kwargs)
        except RuntimeError as error:
            if IN_PLACE_TRAP in str(error):
                raise ConfigurationError(IN_PLACE_LESSON) from error
            raise
        session.end_forward(_loss(output))
        return output

    return training_step


def _batch_index(args: tuple[Any, ...], host: LightningHost) -> int:
    return args[1] if len(args) > 1 and isinstance(args[1], int) else host.clock().batch


def _loss(output: Tensor | Mapping[str, Any] | None) -> Tensor | None:
    loss = output.get("loss") if isinstance(output, Mapping) else output
    return loss if isinstance(loss, Tensor) else None
