"""What a trace took for granted: found out while it is written down, checked at each call."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradwatch.fused.operation import Half
from gradwatch.hooks import Hook
from gradwatch.non_finite.rng import RandomState

__all__ = [
    "Read", "carries_hook", "drew", "guard", "is_plain", "members", "reads_noted", "surroundings",
]  # fmt: skip

Read = tuple[str, str]
"""Path of a module below a block, and the name of an attribute of it."""

# Code and arrays: a trace calls them or is handed them, and fixes nothing of theirs.
LIVE = (Tensor, nn.Module, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def is_plain(value: object) -> bool:
    """Tell whether a trace fixes a value by itself.

    Args:
        value: Any value.
    """
    return isinstance(value, bool | int | float | str | type(None))


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
    return drawn or before.python != after.python or str(before.numpy) != str(after.numpy)


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
        if path is not None and _changeable(value):
            noted[path, name] = None
        return value

    reads: list[Read] = []
    nn.Module.__getattribute__ = read  # type: ignore[method-assign,assignment]
    try:
        yield reads
    finally:
        del nn.Module.__getattribute__
        reads += noted


def _changeable(value: object) -> bool:
    return is_plain(value) or not (isinstance(value, LIVE) or callable(value))


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
    training = tuple(each.training for each in block.modules())
    known = tuple(_fixed(getattr(block.get_submodule(path), name, None)) for path, name in reads)
    return kinds, half.dtype, training, known


def members(block: nn.Module, skipped: Sequence[str]) -> tuple[object, ...]:
    """Give the types of modules that are not called; what is hung on one later must be called.

    Args:
        block: The block that is called.
        skipped: Paths of the modules below it whose own call is left out.
    """
    found = (block.get_submodule(path) for path in skipped)
    return tuple(None if carries_hook(each) else type(each) for each in found)


def _kind(value: object) -> object:
    if isinstance(value, Tensor):
        return value.dtype, value.dim(), value.device.type, type(value)
    return value if is_plain(value) else type(value)


def _fixed(value: object) -> object:
    """Give the plain values in an attribute: a number, a list of them, those a config holds."""
    if is_plain(value):
        return value
    if isinstance(value, list | tuple):
        return tuple(each if is_plain(each) else id(each) for each in value)
    held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return tuple((name, own) for name, own in held.items() if is_plain(own))


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
