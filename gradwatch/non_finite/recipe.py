"""How a micro-batch is begun on another machine, in tensors and primitives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["model", "training_step", "manual"]
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a program knows beside model and micro-batch.

    Attributes:
        kind: ``"model"`` calls the model; ``"training_step"`` and ``"manual"`` run a
            LightningModule's training step under automatic or manual optimization.
        gradients: Gradient at each tensor the model gave; for ``"model"`` only.
        autocast: Type autocast computed in, such as ``"float16"``; empty where it was off.
        arity: Number of arguments of the training step.
        divide_by: Micro-batches the loss is divided by.
        scale: Factor of the gradient scaler; 0 where it has none or is left out.
        precision: Lightning's word for the precision, such as ``"16-mixed"``.
        optimizer_steps: Optimizer steps of the batch, the failing one included.
        toggled: Parameters that do not train for the length of one optimizer's turn only.
        step: ``trainer.global_step``.
        epoch: ``trainer.current_epoch``.
        config: Hyperparameters the module saved, as far as they are primitives.
    """

    kind: Kind
    gradients: Sequence[Tensor | None] = ()
    autocast: str = ""
    arity: int = 2
    divide_by: int = 1
    scale: float = 0.0
    precision: str = "32-true"
    optimizer_steps: int = 1
    toggled: Sequence[str] = ()
    step: int = 0
    epoch: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Give it as containers that load anywhere; tensors go to the CPU."""
        kept = {name: value for name, value in vars(self).items() if name != "gradients"}
        grads = [None if each is None else each.detach().cpu() for each in self.gradients]
        return {**kept, "config": dict(self.config), "gradients": grads}


def autocast_now(device: str) -> str:
    """Name the type autocast computes in on a device at this moment; empty where it is off.

    Args:
        device: Kind of device, such as ``"cuda"``.

    Examples:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     autocast_now("cpu")
        'bfloat16'
        >>> autocast_now("cpu")
        ''
    """
    # Asking about a device that has none, such as "meta", raises.
    if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
        return ""
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
