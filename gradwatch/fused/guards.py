"""What a trace took for granted: found out while it is written down, checked at each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from gradwatch.fused.fixed import changeable, fixed, is_plain
from gradwatch.fused.operation import Half
from gradwatch.hooks import Hook
from gradwatch.non_finite.rng import RandomState

__all__ = [
    "ARGUMENT", "FORWARD", "OURS", "Read", "carries_hook", "drew", "guard", "members",
    "reads_noted", "replaced", "settings", "surroundings",
]  # fmt: skip

Read = tuple[str, str]
"""Path of a module below a block, and the name of an attribute of it, or of one of that."""

OURS: WeakSet[Callable[..., Any]] = WeakSet()
"""Forwards that compute what the stock ones do: a module that wears one is as it was."""

# Fused functions read what these hold when they are called.
ASKED = (nn.Linear, nn.BatchNorm2d, nn.GroupNorm)
OF_EVERY_MODULE = frozenset({*vars(nn.Module()), "forward"})
# Stands for a path where an attribute of an argument is read.
ARGUMENT = "="
# A class's own, whatever the instance runs: that is looked at by itself.
FORWARD = "forward"


def surroundings(device: str) -> tuple[object, ...]:
    """Say under which settings operations run: a trace writes operations down, not settings.

    Args:
        device: Device type.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks  # noqa: SLF001 - no public query
    autocast = [torch.is_autocast_enabled(each) for each in (device, "cpu")]
    types_ = [torch.get_autocast_dtype(each) for each in (device, "cpu")]
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return *modes, *autocast, *types_, hooks(True)


def drew(before: RandomState, after: RandomState) -> bool:
    """Tell whether random numbers were drawn in between.

    Args:
        before: Generators before.
        after: Generators after.
    """
    drawn = not torch.equal(before.torch, after.torch)
    drawn |= any(not torch.equal(own, after.devices[name]) for name, own in before.devices.items())
    numbers, others = before.numpy["state"], after.numpy["state"]
    drawn |= numbers["pos"] != others["pos"] or not np.array_equal(numbers["key"], others["key"])
    drawn |= before.numpy["has_gauss"] != after.numpy["has_gauss"]
    return drawn or before.python != after.python


@contextmanager
def reads_noted(paths: Mapping[nn.Module, str]) -> Iterator[list[Read]]:
    """Note which attributes of modules are read, where a later call may find another value.

    Args:
        paths: The modules that matter, with their paths.
    """
    noted: dict[Read, None] = {}

    def read(module: nn.Module, name: str) -> Any:  # noqa: ANN401 - any attribute
        value = object.__getattribute__(module, name)
        path = paths.get(module) if not name.startswith("__") else None
        if path is not None and changeable(value):
            noted[path, name] = None
        return value

    reads: list[Read] = []
    nn.Module.__getattribute__ = read  # type: ignore[method-assign,assignment]
    try:
        yield reads
    finally:
        del nn.Module.__getattribute__
        reads += noted


def guard(
    block: nn.Module, values: Mapping[str, Any], half: Half, reads: Sequence[Read]
) -> tuple[Any, ...]:
    """Give what must be as it was when the trace was made.

    Args:
        block: The block that is called.
        values: Its arguments by name.
        half: Autocast at the call.
        reads: Attributes its forward reads.
    """
    kinds = tuple(_kind(value) for value in values.values())
    known = tuple(
        _kind(_asked(values, name)) if path == ARGUMENT else fixed(_read(_at(block, path), name))
        for path, name in reads
    )
    return kinds, half.dtype, known


def members(
    block: nn.Module, skipped: Sequence[str], entered: Sequence[str] = ()
) -> tuple[object, ...]:
    """Give what must be as it was of a block, and of the modules in it that are not called.

    Those that are called answer for themselves.

    Args:
        block: The block that is called.
        skipped: Paths of the modules below it that a fused function stands for.
        entered: Paths of those whose own forward is part of the block's.
    """
    parts = tuple(_standing(_at(block, path)) for path in skipped)
    frames = tuple(_frame(_at(block, path)) for path in entered)
    return _has_any_global_hook(), block.training, _held(block), parts, frames


def _read(module: nn.Module | None, name: str) -> Any:  # noqa: ANN401 - any attribute
    if name == FORWARD:
        return getattr(type(module), FORWARD, None)
    value: Any = module
    for each in name.split("."):
        value = getattr(value, each, None)
    return value


def _at(block: nn.Module, path: str) -> nn.Module | None:
    """Find a module, unless it was taken away."""
    found: nn.Module | None = block
    for name in filter(None, path.split(".")):
        found = None if found is None else found._modules.get(name)
    return found


def _standing(module: nn.Module | None) -> object:
    if module is None or carries_hook(module) or _patched(module):
        return None
    return type(module), type(module).forward, module.training, settings(module)


def _frame(module: nn.Module | None) -> object:
    if module is None:
        return None
    if replaced(module) or module._compiled_call_impl is not None or carries_hook(module):
        return None
    return type(module), module.training, _held(module)


def replaced(module: nn.Module) -> bool:
    """Tell whether an instance runs another forward than its class.

    Args:
        module: The module.
    """
    own = vars(module).get("forward")
    # A model that was pickled in its swaps comes back with its class's forward on the instance.
    # A scripted module's class has no forward that could be looked at.
    if own is None or isinstance(module, torch.jit.ScriptModule):
        return False
    return getattr(own, "__func__", own) is not type(module).forward


def _patched(module: nn.Module) -> bool:
    """Tell whether somebody else gave an instance a forward of its own."""
    own = vars(module).get("forward")
    return replaced(module) and getattr(own, "__func__", own) not in OURS


def _held(module: nn.Module) -> tuple[object, ...]:
    """Give the names and types of a module's children, and which of its parameters are there."""
    children = tuple((name, type(each)) for name, each in module._modules.items())
    absent = tuple(
        name
        for each in (module._parameters, module._buffers)
        for name, own in each.items()
        if own is None
    )
    return children, absent


def settings(module: nn.Module) -> tuple[object, ...]:
    """Give the numbers a module computes with, where a fused function may have closed over them.

    Args:
        module: A norm or an activation. Stock layers with weights are asked at each call: theirs
            may change, as a BatchNorm's momentum does.
    """
    if type(module) in ASKED:
        return ()
    own = ((name, each) for name, each in vars(module).items() if name not in OF_EVERY_MODULE)
    return tuple((name, fixed(each)) for name, each in own)


def _asked(values: Mapping[str, Any], name: str) -> object:
    argument, _, attribute = name.partition(".")
    return getattr(values.get(argument), attribute, None)


def _kind(value: object) -> object:
    if isinstance(value, Tensor):
        return value.dtype, value.dim(), value.device.type, type(value)
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_kind, value))
    if isinstance(value, dict):
        return type(value), tuple((name, _kind(each)) for name, each in value.items())
    return value if is_plain(value) else type(value)


def carries_hook(module: nn.Module) -> bool:
    """Tell whether a hook of the user's would not fire were the module not called.

    Args:
        module: The module.
    """
    own: tuple[dict[int, Callable[..., object]], ...] = (
        module._forward_hooks,  # noqa: SLF001 - no public query
        module._forward_pre_hooks,  # noqa: SLF001
        module._backward_hooks,  # noqa: SLF001
        module._backward_pre_hooks,  # noqa: SLF001
    )
    return any(not isinstance(hook, Hook) for hooks in own for hook in hooks.values())
