"""Watch one run of a micro-batch: which modules are called, with what, and in which type."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradwatch.fused.bench import Bench, Dress
from gradwatch.fused.called import CalledLoss, LossesNoted
from gradwatch.fused.operation import Call, Candidate, Function, Half, Operation
from gradwatch.hooks import tensors_in
from gradwatch.layers import is_compiled
from gradwatch.non_finite.rng import RandomState
from gradwatch.undo import Undo, patch_instance

__all__ = ["Seen", "Visit", "half_now", "observe", "record"]


@dataclass(frozen=True)
class Visit:
    """The first call of a module.

    Attributes:
        args: Positional inputs, as they were handed over.
        kwargs: Keyword inputs.
        half: Autocast then.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    half: Half


@dataclass
class Seen:
    """What a run showed.

    Attributes:
        visits: First call of each module that was called.
        counts: How often each was called.
        differentiates_twice: Whether the step builds a graph of its gradients.
        losses: The losses that were called as functions.
    """

    visits: dict[nn.Module, Visit] = field(default_factory=dict)
    counts: Counter[nn.Module] = field(default_factory=Counter)
    differentiates_twice: bool = False
    losses: list[CalledLoss] = field(default_factory=list)


def half_now(device: str) -> Half:
    """Read autocast.

    Args:
        device: Device type.
    """
    on = torch.is_autocast_enabled(device)
    return Half(device, torch.get_autocast_dtype(device) if on else None)


def observe(bench: Bench, dress: Dress) -> Seen:
    """Run once and look at every call.

    Args:
        bench: The micro-batch; opened.
        dress: Puts the forwards on that are to be run.
    """
    seen, undo = Seen(), Undo()

    def arrived(_grad: Tensor) -> None:
        # Only a backward that is itself recorded runs with gradients on.
        seen.differentiates_twice |= torch.is_grad_enabled()

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.counts[module] += 1
        if module not in seen.visits:
            half = half_now(bench.device.type)
            seen.visits[module] = Visit(args, dict(kwargs), half)
            bench.half_types.update({half.dtype} - {None})
        for each in tensors_in((args, kwargs)):
            if each.grad_fn is not None:
                each.register_hook(arrived)

    bench.rewind(dress)
    for module in bench.model.modules():
        if not isinstance(module, torch.jit.ScriptModule):
            undo.add(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
    noted = LossesNoted(bench.model)
    try:
        with nullcontext() if _compiles(bench.model) else noted:
            bench.step()
    finally:
        undo()
    seen.losses = noted.calls
    return seen


def _compiles(model: nn.Module) -> bool:
    """Tell whether something would be compiled anew under a mode of ours."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["stats"]["unique_graphs"]:
        return True
    return is_compiled(model)


def record(bench: Bench, dress: Dress, candidate: Candidate) -> list[Call | None]:
    """Run once and copy the first call of each of a candidate's operations.

    Args:
        bench: The micro-batch; opened.
        dress: Puts the forwards on that are to be run.
        candidate: Its module runs the stock functions, listened to.

    Returns:
        One call an operation; None for one that was not called or got no gradient.
    """
    tapes = [_Tape(each, bench.device.type) for each in candidate.operations]
    bench.rewind(dress)
    forward = candidate.build([tape.function() for tape in tapes])
    undo = patch_instance(candidate.module, "forward", forward.__get__(candidate.module))
    try:
        bench.step()
    finally:
        undo()
    return [tape.call() for tape in tapes]


class _Tape:
    """The first call of one operation."""

    def __init__(self, operation: Operation, device: str) -> None:
        self._operation, self._device = operation, device
        self._inputs: tuple[Any, ...] | None = None
        self._kwargs: dict[str, Any] = {}
        self._gradients: list[Tensor | None] = []

    def function(self) -> Function:
        """Give the stock function that is listened to."""
        stock, count = self._operation.stock, len(self._operation.members)

        def forward(*given: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the stock function
            if self._inputs is not None or not torch.is_grad_enabled():
                return stock(*given, **kwargs)
            self._random, self._half = RandomState.take(), half_now(self._device)
            self._inputs, self._kwargs = tuple(map(_copied, given[count:])), kwargs
            output = stock(*given, **kwargs)
            self._listen(output)
            return output

        return forward

    def _listen(self, output: object) -> None:
        outputs = list(tensors_in(output))
        self._gradients = [None] * len(outputs)

        def arrived(slot: int, grad: Tensor) -> None:
            self._gradients[slot] = grad.detach().clone()

        for slot, tensor in enumerate(outputs):
            if tensor.requires_grad:
                tensor.register_hook(lambda grad, slot=slot: arrived(slot, grad))

    def call(self) -> Call | None:
        if self._inputs is None:
            return None
        grads = tuple(self._gradients)
        return Call(self._inputs, self._kwargs, grads, self._random, self._half)


def _copied(value: Any) -> Any:  # noqa: ANN401 - any input
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)
