"""Put a model back as it was, whatever a replay did to it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from gradwatch.undo import Undo

DEEPEST = 8
# Objects of these hold the whole run; what a training step changes in them is their own matter.
OPAQUE = frozenset(
    {"torch", "lightning", "pytorch_lightning", "lightning_fabric", "builtins", "wandb"}
    | {"gradwatch"}
)

SCALARS = (bool, int, float, complex, str, bytes, type(None))

Back = Callable[[], object]


class Snapshot:
    """The state of a model and of what its modules hold, to be put back any number of times.

    Tensors are cloned and written back into the same objects, containers are
    refilled in place: whoever else holds them sees the old contents again.

    Args:
        model: The model.
        extra: Tensors outside the model that a replay may change, such as the batch's.
    """

    def __init__(self, model: nn.Module, extra: Iterator[Tensor]) -> None:
        """Copy everything that can change."""
        self._seen: dict[int, object] = {}
        self._back: list[Back] = []
        # Breadth first: everything is met on its shortest way, at its greatest depth.
        near: deque[tuple[Any, int]] = deque((vars(each), DEEPEST) for each in model.modules())
        near.extend((tensor, 1) for tensor in extra)
        while near:
            value, depth = near.popleft()
            near.extend((inner, depth - 1) for inner in self._take(value) if depth > 1)

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for back in self._back:
                back()

    def _take(self, value: Any) -> list[Any]:  # noqa: ANN401 - any attribute of a module
        """Learn the way back of one object; give what it holds."""
        if isinstance(value, SCALARS) or id(value) in self._seen:
            return []
        taken = next((take for kinds, take in _TAKERS if isinstance(value, kinds)), _take_object)
        # Kept alive: the address of a freed object may be given to another one.
        self._seen[id(value)] = value
        back, inner = taken(value)
        self._back += back
        return inner


@contextmanager
def gradients_aside(model: nn.Module) -> Iterator[None]:
    """Set every gradient to None for a block, then give the very same ones back.

    Hooks that run after a gradient has been accumulated are kept from running:
    they may step an optimizer.
    """
    parameters = list(model.parameters())
    held = [(each, each.grad, each.requires_grad) for each in parameters]
    undo = Undo()
    try:
        for parameter in parameters:
            parameter.grad = None
            undo.add(_mute(parameter))
        yield
    finally:
        undo()
        for parameter, grad, requires_grad in held:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad


def _mute(parameter: nn.Parameter) -> Back:
    hooks: dict[Any, Any] = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    kept = dict(hooks)
    hooks.clear()
    return lambda: hooks.update(kept)


def _take_tensor(tensor: Tensor) -> tuple[list[Back], list[Any]]:
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta:
        return [], []
    copy = tensor.detach().clone()
    grad = tensor.grad if tensor.is_leaf and not isinstance(tensor, nn.Parameter) else None

    def back() -> None:
        # Through .data: the version counter must not see it.
        if tensor.shape == copy.shape:
            tensor.data.copy_(copy)
        else:
            tensor.data = copy.clone()
        if not isinstance(tensor, nn.Parameter) and tensor.is_leaf:
            tensor.grad = grad

    return [back], []


def _take_dict(value: dict[Any, Any]) -> tuple[list[Back], list[Any]]:
    kept = dict(value)

    def back() -> None:
        if not _identical(value, kept):
            value.clear()
            value.update(kept)

    return [back], list(kept.values())


def _identical(now: dict[Any, Any], kept: dict[Any, Any]) -> bool:
    pairs = zip(now.items(), kept.items(), strict=False)
    return len(now) == len(kept) and all(a is c and b is d for (a, b), (c, d) in pairs)


def _take_list(value: list[Any] | deque[Any]) -> tuple[list[Back], list[Any]]:
    kept = list(value)

    def back() -> None:
        value.clear()
        value.extend(kept)

    return [back], kept


def _take_set(value: set[Any]) -> tuple[list[Back], list[Any]]:
    kept = set(value)

    def back() -> None:
        value.clear()
        value.update(kept)

    return [back], []


def _take_array(value: np.ndarray[Any, Any]) -> tuple[list[Back], list[Any]]:
    kept = value.copy()
    return ([lambda: np.copyto(value, kept)] if value.flags.writeable else []), []


def _take_generator(value: torch.Generator) -> tuple[list[Back], list[Any]]:
    state = value.get_state()
    return [lambda: value.set_state(state)], []


def _take_numpy_generator(value: np.random.Generator) -> tuple[list[Back], list[Any]]:
    state = value.bit_generator.state
    return [lambda: setattr(value.bit_generator, "state", state)], []


def _take_python_generator(value: random.Random) -> tuple[list[Back], list[Any]]:
    state = value.getstate()
    return [lambda: value.setstate(state)], []


def _take_tuple(value: tuple[Any, ...]) -> tuple[list[Back], list[Any]]:
    return [], list(value)


def _take_nothing(_value: object) -> tuple[list[Back], list[Any]]:
    return [], []


def _take_object(value: object) -> tuple[list[Back], list[Any]]:
    family = type(value).__module__.partition(".")[0]
    closed = isinstance(value, type) or not hasattr(value, "__dict__")
    # A module kept in a plain list is registered nowhere, but it is a module.
    if closed or (family in OPAQUE and not isinstance(value, nn.Module)):
        return [], []
    return [], [vars(value)]


_TAKERS: tuple[tuple[Any, Callable[[Any], tuple[list[Back], list[Any]]]], ...] = (
    ((Dataset, DataLoader), _take_nothing),
    (tuple, _take_tuple),
    (Tensor, _take_tensor),
    (dict, _take_dict),
    ((list, deque), _take_list),
    (set, _take_set),
    (np.ndarray, _take_array),
    (torch.Generator, _take_generator),
    (np.random.Generator, _take_numpy_generator),
    (random.Random, _take_python_generator),
)
