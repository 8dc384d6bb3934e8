"""Read signs off what the user has: a loader, a model, an optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel
from torch.optim import Optimizer

from gradwatch.symptoms.signs import Budget, Loading

HALVES = (torch.float16, torch.bfloat16)


def loading_of(loader: object, device: torch.device | str = "cpu") -> Loading | None:
    """Read how a loader loads.

    Args:
        loader: A ``DataLoader``, or anything with its settings.
        device: Where the model runs.

    Returns:
        The settings; None where the loader has none.

    Examples:
        >>> from torch.utils.data import DataLoader
        >>> loading_of(DataLoader([1, 2], num_workers=0)).workers
        0
    """
    workers = getattr(loader, "num_workers", None)
    if not isinstance(workers, int):
        return None
    return Loading(
        workers=workers,
        pinned=bool(getattr(loader, "pin_memory", False)),
        persistent=bool(getattr(loader, "persistent_workers", False)),
        accelerated=torch.device(device).type != "cpu",
    )


def devices_of(model: nn.Module) -> int:
    """Count the devices that this process drives by ``DataParallel``.

    Args:
        model: The model, with its wrappers.
    """
    wrappers = [each for each in model.modules() if isinstance(each, DataParallel)]
    return max([1, *(len(each.device_ids) for each in wrappers)])


def half_copy_only(optimizer: Optimizer) -> str:
    """Name the half-precision type of weights that have no float32 copy; empty for none.

    A copy is a float32 tensor of the weight's sizes in the optimizer's state, or a float32
    attribute of the weight, as mixed-precision wrappers keep it. Moments in float32 count:
    such an optimizer computes its update in float32 too, and the weight loses it all the same,
    so that only what is named for a copy does.

    Args:
        optimizer: The optimizer.
    """
    weights = [each for group in optimizer.param_groups for each in group["params"]]
    half = [each for each in weights if each.dtype in HALVES and each.requires_grad]
    without = [each for each in half if not _has_copy(each, optimizer.state.get(each, {}))]
    return str(without[0].dtype).removeprefix("torch.") if without else ""


def _has_copy(weight: Tensor, state: dict[str, Any]) -> bool:
    named = {**state, **getattr(weight, "__dict__", {})}
    return any(
        isinstance(value, Tensor)
        and value.dtype is torch.float32
        and value.shape == weight.shape
        and any(word in str(name) for word in ("master", "fp32", "float32", "main", "copy"))
        for name, value in named.items()
    )


def rests(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer's rate is 0, so that its weights stay where they are.

    A rate that lies on the device is not asked for.

    Args:
        optimizer: The optimizer.
    """
    rates = [group.get("lr") for group in optimizer.param_groups]
    return all(not isinstance(rate, Tensor) and rate == 0 for rate in rates)


def budget_of(
    peak_bytes: int, model: nn.Module, optimizers: Iterable[Optimizer], saved_bytes: int
) -> Budget:
    """Add up what memory should hold.

    Args:
        peak_bytes: The allocator's peak.
        model: The model.
        optimizers: Its optimizers, after their first step.
        saved_bytes: What the forward keeps for the backward.
    """
    parameters = list(model.parameters())
    gradients = [each for each in parameters if each.requires_grad]
    held = [*parameters, *gradients, *model.buffers(), *_states(optimizers)]
    return Budget(peak_bytes, sum(each.nbytes for each in held), saved_bytes)


def _states(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
