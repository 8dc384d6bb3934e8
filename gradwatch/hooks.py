"""Backward taps: the gradient at each layer's outputs, seen without changing the run.

torch's own full backward hooks raise where an in-place operation follows and are
blind to dictionary and dataclass outputs. The taps are tensor hooks, set on the output
leaves from a forward hook that returns None.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradwatch.norms import as_plain
from gradwatch.readings import Coverage
from gradwatch.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwatch.layers import Layer

HOOKED = "hooked"
PARAMETERS_ONLY = "parameter gradients only"
BLIND = "blind"

_FAST_PATHS = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
_NO_LEAVES = "its output holds no tensor that the taps can reach"


def tensors_in(value: object, depth: int = 8) -> Iterator[Tensor]:
    """Walk an output to its tensors: dict, list, tuple, dataclass, any mapping.

    Args:
        value: What a module returned.
        depth: How deep containers are entered.

    Yields:
        Each tensor, in order.

    Examples:
        >>> len(list(tensors_in({"h": torch.ones(1), "n": 3, "more": [torch.ones(2), None]})))
        2
    """
    if isinstance(value, Tensor):
        yield value
    elif depth:
        for child in _children(value):
            yield from tensors_in(child, depth - 1)


def _children(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, field.name, None) for field in fields(value))


def under_functorch() -> bool:
    """Tell whether a torch.func transform is running (its tensors must not be read)."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def unreachable(model: nn.Module) -> dict[nn.Module, str]:
    """Find the modules no hook may be set on, with the reason.

    Args:
        model: The model, unwrapped.

    Returns:
        Module → why: compiled, scripted, or a fast path that a hook would switch off.
    """
    reasons: dict[nn.Module, str] = {}
    for module in model.modules():
        why = _reason(module)
        if why:
            for inner in module.modules():
                reasons.setdefault(inner, why)
    return reasons


def _reason(module: nn.Module) -> str:
    if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
        return "compiled"
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted"
    if isinstance(module, _FAST_PATHS) and not module.training:
        return "in eval mode, where a hook would switch its fast path off"
    return ""


class Hook:
    """A module hook that copies and pickles as one that does nothing.

    A deep copy of a hooked model (EMA, SWA) or a pickle of it carries no live hook
    and loads where gradwatch is not installed.

    Args:
        call: Called with the hook's arguments; its return value is dropped, so that
            a hook never replaces an output.
    """

    def __init__(self, call: Callable[..., object]) -> None:
        """Wrap the call."""
        self._call = call

    def __call__(self, *args: object) -> None:
        """Run the hook; not where a compiler traces the module it hangs on."""
        if not torch.compiler.is_compiling():
            self._call(*args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        """Reduce to a bound method that takes anything and returns None."""
        return getattr, (contextlib.nullcontext(), "__exit__")


class Taps:
    """Watch calls and output gradients of layers for as long as they are attached.

    Args:
        model: The model, unwrapped.
        layers: The layers to watch.
        native: Use ``register_full_backward_hook`` instead of tensor hooks.
        compiled: Whether layers may run in a compiled wrapper, where hooks stand still.

    Attributes:
        calls: Layer → number of forward calls seen, in the order of the first call.
        gradients: (layer, 0-d norm) of each output gradient, in order of arrival.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: tuple[Layer, ...],
        *,
        native: bool,
        compiled: bool = False,
    ) -> None:
        """Remember what to watch; nothing is attached yet."""
        self._uncalled = "compiled" if compiled else "never called"
        self._model, self._layers, self._native = model, layers, native
        self._blocked: dict[nn.Module, str] = {}
        self._seen_output: set[str] = set()
        self.calls: dict[str, int] = {}
        self.gradients: list[tuple[str, Tensor]] = []

    def attach(self) -> Undo:
        """Set the hooks on every module that can bear one now.

        Returns:
            The undo that removes every one of them.
        """
        undo = Undo()
        self._blocked = unreachable(self._model)
        for layer in self._layers:
            if layer.module not in self._blocked:
                self._attach(layer, undo)
        return undo

    def take(self) -> list[tuple[str, Tensor]]:
        """Hand over the output gradients seen since the last call."""
        taken, self.gradients = self.gradients, []
        return taken

    def _attach(self, layer: Layer, undo: Undo) -> None:
        module, name = layer.module, layer.name
        before = Hook(lambda *_: self._called(name))
        undo.add(module.register_forward_pre_hook(before).remove)
        if self._native:
            native = Hook(lambda _m, _gin, gout: self._record(name, gout))
            undo.add(module.register_full_backward_hook(native).remove)
        else:
            after = Hook(lambda _m, _args, output: self._returned(name, output))
            undo.add(module.register_forward_hook(after).remove)

    def _called(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def _returned(self, name: str, output: object) -> None:
        if under_functorch():
            return
        for tensor in tensors_in(output):
            self._seen_output.add(name)
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(lambda grad: self._record(name, (grad,)))

    def _record(self, name: str, grads: tuple[Tensor | None, ...]) -> None:
        self._seen_output.add(name)
        for grad in grads:
            if grad is not None and not under_functorch():
                plain = as_plain(grad.detach())
                dtype = torch.float64 if plain.dtype is torch.float64 else torch.float32
                norm = torch.linalg.vector_norm(plain, dtype=dtype)
                self.gradients.append((name, norm))

    def coverage(self) -> list[Coverage]:
        """Say of each layer whether it was seen, and why not."""
        return [self._covered(layer) for layer in self._layers]

    def _covered(self, layer: Layer) -> Coverage:
        if layer.module in self._blocked:
            reason = self._blocked[layer.module]
        elif layer.name not in self.calls:
            reason = self._uncalled
        elif layer.name not in self._seen_output:
            reason = _NO_LEAVES
        else:
            return Coverage(layer=layer.name, state=HOOKED)
        trainable = any(p.requires_grad for p in layer.module.parameters(recurse=True))
        state = PARAMETERS_ONLY if trainable else BLIND
        return Coverage(layer=layer.name, state=state, reason=reason)
