"""The forms of a softmax cross-entropy of logits and class indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["NEGATIVE", "REDUCTIONS", "UNREACHED", "LossForm", "loss_reference"]

# No class and no index of anything: rows that are left out are marked with it.
UNREACHED = -(1 << 40)


class LossForm(NamedTuple):
    """What a cross-entropy of logits and class indices computes.

    Attributes:
        ignore_index: The target that counts for nothing; ``None`` if every target counts.
        reduction: A name out of ``REDUCTIONS``.
        smoothing: Share of the loss that is spread over all classes alike, 0 to 1.
        dim: The dimension of the classes: -1, or 1 where they come second of more than two.
        rank: Number of dimensions of the logits it was recognised for; 0 if any will do.
        classes: Number of classes it was recognised for; 0 if any will do.
        negative: What a negative target is taken for, a name out of ``NEGATIVE``.
        promotes: Whether short logits give a float32 loss.
    """

    ignore_index: int | None = -100
    reduction: str = "mean"
    smoothing: float = 0.0
    dim: int = -1
    rank: int = 0
    classes: int = 0
    negative: str = "no class"
    promotes: bool = False


REDUCTIONS: Mapping[str, Callable[[Tensor, Tensor, int], Tensor]] = MappingProxyType(
    {
        "mean": lambda total, counted, _rows: total / counted,
        "sum": lambda total, _counted, _rows: total,
        "mean, 0 of none": lambda total, counted, _rows: total / counted.clamp_min(1),
        "mean of all rows": lambda total, _counted, rows: total / rows,
    }
)
"""Name → (sum of the losses, rows that count, rows) → loss; beside them ``"none"``."""

NEGATIVE: Mapping[str, Callable[[Tensor, int], Tensor]] = MappingProxyType(
    {
        "no class": lambda target, _classes: target,
        "counted from the end": lambda target, n: torch.where(target < 0, target + n, target),
        "the first class": lambda target, _classes: target.clamp_min(0),
    }
)
"""Name → (targets, classes) → class indices."""


def loss_reference(form: LossForm, x: Tensor, target: Tensor) -> Tensor:
    """Compute a form, slowly and obviously.

    Args:
        form: The form.
        x: Logits, classes along ``form.dim``.
        target: Class indices, of the shape of x without its classes.

    Raises:
        IndexError: If a target is no class.
        RuntimeError: Likewise.
    """
    x = x.movedim(form.dim, -1)
    log_p = x - x.logsumexp(-1, keepdim=True)
    left_out = torch.zeros_like(target, dtype=torch.bool)
    if form.ignore_index is not None:
        left_out = target == form.ignore_index
    index = NEGATIVE[form.negative](target, x.shape[-1]).masked_fill(left_out, 0)
    own = log_p.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    rows = -(1 - form.smoothing) * own - form.smoothing * log_p.mean(-1)
    rows = rows.masked_fill(left_out, 0.0)
    if form.reduction == "none":
        return rows
    counted = (~left_out).sum()
    return REDUCTIONS[form.reduction](rows.sum(), counted, rows.numel())
