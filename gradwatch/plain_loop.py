"""A model being watched in a plain PyTorch loop: hooks turned into the session's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gradwatch.undo import Undo, patch_instance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from torch import Tensor, nn
    from torch.amp import GradScaler
    from torch.optim import Optimizer
    from typing_extensions import Self

    from gradwatch.findings import Finding
    from gradwatch.plain_host import PlainHost
    from gradwatch.session import Session


class Watch:
    """A model being watched; close it, or use it as a context manager.

    Made by `watch`. The events are the model's forward, the gradient that arrives at its
    outputs, and the optimizer's step.

    Args:
        model: The model.
        optimizers: Its optimizers.
        session: What the events are told to.
        host: The loop, as far as it can be seen from the hooks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        session: Session,
        host: PlainHost,
    ) -> None:
        """Set the hooks."""
        self._session, self._host = session, host
        session.window.beside = host.kept_bytes
        # Optimizers that were looked at since the last forward, and whether they have stepped.
        self._looked: dict[Optimizer, bool] = {}
        self._undo = Undo()
        if model._compiled_call_impl is None:
            enter, leave = host.hook(self._enter), host.hook(self._leave)
            self._undo.add(model.register_forward_pre_hook(enter, with_kwargs=True).remove)
            self._undo.add(model.register_forward_hook(leave).remove)
        else:
            self._undo.add(patch_instance(model, "_compiled_call_impl", self._around(model)))
        for optimizer in optimizers:
            self._undo.add(optimizer.register_step_pre_hook(self._before_step).remove)
            self._undo.add(optimizer.register_step_post_hook(self._after_step).remove)
        if host.scaler is not None:
            self._undo.add(patch_instance(host.scaler, "step", self._scaler_step(host.scaler)))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far."""
        return tuple(self._session.findings)

    def loss(self, loss: Tensor) -> Tensor:
        """Show the unscaled loss, so that a bad one is seen even where gradients stay finite.

        Args:
            loss: The loss of the micro-batch whose forward ran last.

        Returns:
            The same tensor.
        """
        self._session.observe_loss(loss)
        return loss

    def _around(self, model: nn.Module) -> Callable[..., object]:
        """Give the compiled call with the events around it: a hook would be compiled as well."""
        compiled: Any = model._compiled_call_impl

        def call(*args: Any, **kwargs: Any) -> object:
            self._enter(model, args, kwargs)
            output = compiled(*args, **kwargs)
            self._leave(model, args, output)
            return output

        return call

    def _sees(self, module: nn.Module) -> bool:
        return module.training and torch.is_grad_enabled() and not self._session.busy

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._sees(module):
            self._looked.clear()
            self._close_backward()
            index = self._host.enter()
            self._session.begin_micro_batch((args, kwargs), index, joins=True)
            # Gradients at the outputs may be as large as the logits of a language model.
            self._host.keep_only(self._session.window.held_batches())

    def _leave(self, module: nn.Module, _args: object, output: object) -> None:
        if self._sees(module):
            outputs = self._host.leave(output, self._session.begin_backward)
            self._session.end_forward(None, outputs)

    def _close_backward(self) -> None:
        if self._host.backward_open:
            self._host.backward_open = False
            self._session.end_backward()

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Look at the gradients; where a closure is yet to make them, right behind it."""
        own, *given = args
        closure = given[0] if given else kwargs.get("closure")
        if self._host.in_scaler_step:
            return None
        if closure is None:
            self._look(optimizer)
            return None

        def watched() -> object:
            loss = closure()
            self._look(optimizer)
            return loss

        rest = {name: value for name, value in kwargs.items() if name != "closure"}
        return (own, watched, *given[1:]), rest

    def _look(self, optimizer: Optimizer) -> None:
        if self._host.forwards == 0 and self._looked.get(optimizer, True):
            # The model itself is never called, only its parts: each step is a window.
            self._looked.clear()
            self._session.begin_micro_batch(((), {}), 0)
        # A step that calls its parent's runs the hooks twice, on the same gradients.
        if optimizer in self._looked:
            return
        self._close_backward()
        if self._session.window.backwards == 0 and _has_gradients(optimizer):
            # None was seen at an output (a plain object, torch.func): it is there anyhow.
            self._session.end_backward()
        self._session.before_step(optimizer)
        self._host.steps += 1
        self._looked[optimizer] = False

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        if self._looked.get(optimizer, True):
            return
        self._looked[optimizer] = True
        self._session.after_step(optimizer)
        self._session.untap()

    def _scaler_step(self, scaler: GradScaler) -> Any:  # noqa: ANN401 - the scaler's own signature
        """Look before the scaler decides: on an overflow it skips the step and its hooks."""
        inner = scaler.step

        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
            if not getattr(optimizer, "_step_supports_amp_scaling", False):
                self._host.unscale_once(optimizer)
            self._look(optimizer)
            self._host.in_scaler_step = True
            try:
                return inner(optimizer, *args, **kwargs)
            finally:
                # A skipped step has no hook that says it is over.
                self._host.in_scaler_step, self._looked[optimizer] = False, True
                self._session.end_batch()

        return step

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed run needs; primitives only."""
        parts = {part.name: part.state_dict() for part in self._session.jury.parts}
        return {**parts, **self._session.teller.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for part in self._session.jury.parts:
            if part.name in state:
                part.load_state_dict(state[part.name])
        self._session.teller.load_state_dict(state)

    def close(self) -> None:
        """Flush, close the sinks and take every hook off; safe to call twice."""
        self._session.finish()
        self._undo()

    def __enter__(self) -> Self:
        """Watch for the length of a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close, whatever happened."""
        self.close()


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(own.grad is not None for group in optimizer.param_groups for own in group["params"])
