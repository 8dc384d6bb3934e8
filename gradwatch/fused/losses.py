"""Cross-entropies of any recognised form through fused functions.

As with norms, nothing but numbers and names is closed over; a call that a form does not fit goes
the stock way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused._checks import autocast_dtype, refuse_call
from gradwatch.fused._cross_entropy import cross_entropy
from gradwatch.fused.guards import carries_hook, settings
from gradwatch.fused.loss_forms import NEGATIVE, REDUCTIONS, UNREACHED, LossForm
from gradwatch.fused.operation import Function

__all__ = [
    "fused_cross_entropy",
    "fused_loss",
    "refuse_loss",
    "stands_on",
    "torch_loss",
    "while_unchanged",
]

SECOND = "its classes come second: a copy to put them last costs what the kernel saves"

Reduced = Callable[[Tensor, Tensor, int, str], Tensor]
"""(logits, class indices, the one left out, reduction) → loss."""


def fused_loss(form: LossForm) -> Function:
    """Make a module's forward that runs the bundled kernel.

    Args:
        form: What the module computes.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the stock one's
        if kwargs or refuse_loss(form, args) is not None:
            return type(self).forward(self, *args, **kwargs)
        return _fused(form, *args)

    return forward


def torch_loss(form: LossForm) -> Function:
    """Make a module's forward that runs ``torch.nn.functional.cross_entropy``.

    Args:
        form: What the module computes.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the stock one's
        if kwargs or _unfit(form, args) is not None:
            return type(self).forward(self, *args, **kwargs)
        return _by_torch(form, *args)

    return forward


def fused_cross_entropy(form: LossForm) -> Function:
    """Make a function of logits and targets that runs the bundled kernel.

    Args:
        form: What it computes.
    """

    def loss(x: Tensor, target: Tensor) -> Tensor:
        compute = _by_torch if refuse_loss(form, (x, target)) is not None else _fused
        return compute(form, x, target)

    return loss


def refuse_loss(form: LossForm, args: tuple[Any, ...]) -> str | None:
    """Say why the bundled kernel cannot take a call.

    Args:
        form: What is computed.
        args: Logits and targets.

    Returns:
        The reason, or ``None``.
    """
    if form.dim == 1:
        return SECOND
    return _unfit(form, args) or refuse_call(args[0])


def while_unchanged(module: nn.Module) -> Callable[[Function], Function]:
    """Let a function serve as a module's forward for as long as the module holds what it holds now.

    A form was recognised with the module's own numbers: another share of smoothing is another loss.

    Args:
        module: The module.
    """
    known = stands_on(module)

    def build(fused: Function) -> Function:
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the stock one's
            if stands_on(self) != known:
                return type(self).forward(self, *args, **kwargs)
            return fused(self, *args, **kwargs)

        return forward

    return build


def stands_on(module: nn.Module) -> tuple[object, ...]:
    """Give what a form was recognised with: the numbers of a module and of its children.

    Args:
        module: The module. A child that has got a hook must be called.
    """
    inner = (each for each in module.modules() if each is not module)
    hooked = tuple(carries_hook(each) for each in inner)
    return hooked, tuple((type(each), settings(each)) for each in module.modules())


def _unfit(form: LossForm, args: tuple[Any, ...]) -> str | None:
    if len(args) != 2 or not all(type(each) in (Tensor, nn.Parameter) for each in args):  # noqa: PLR2004
        return "it is not given logits and targets alone"
    x, target = args
    if target.dtype != torch.int64:
        return f"its targets are {target.dtype}: only class indices are fused, in int64"
    if target.device != x.device:
        return f"its targets are on {target.device}, its logits on {x.device}"
    shape = x.movedim(form.dim, -1).shape if x.dim() > max(form.dim, 0) else x.shape
    if shape[:-1] != target.shape or x.numel() == 0:
        return f"its targets of shape {tuple(target.shape)} do not fit {tuple(x.shape)}"
    if form.classes not in (0, shape[-1]) or form.rank not in (0, x.dim()):
        return f"it was recognised for {form.classes} classes and {form.rank} dimensions"
    return None


def _fused(form: LossForm, x: Tensor, target: Tensor) -> Tensor:
    dtype = torch.float32 if form.promotes else autocast_dtype(x)

    def reduced(x: Tensor, index: Tensor, left_out: int, reduction: str) -> Tensor:
        return cross_entropy(
            x, index, ignore_index=left_out, reduction=reduction,
            label_smoothing=form.smoothing, dtype=torch.float32,
        )  # fmt: skip

    return _reduced(form, x, target, reduced).to(dtype)


def _by_torch(form: LossForm, x: Tensor, target: Tensor) -> Tensor:
    def reduced(x: Tensor, index: Tensor, left_out: int, reduction: str) -> Tensor:
        flat = form.dim == -1
        loss = F.cross_entropy(
            x.reshape(-1, x.shape[-1]) if flat else x, index.reshape(-1) if flat else index,
            ignore_index=left_out, reduction=reduction, label_smoothing=form.smoothing,
        )  # fmt: skip
        return loss.view(index.shape) if reduction == "none" else loss

    return _reduced(form, x.float() if form.promotes else x, target, reduced)


def _reduced(form: LossForm, x: Tensor, target: Tensor, reduced: Reduced) -> Tensor:
    """Compute a form with a function that knows torch's reductions only."""
    left_out = UNREACHED if form.ignore_index is None else form.ignore_index
    reduction = form.reduction if form.reduction in ("mean", "none") else "sum"
    index, mark = target, left_out
    if form.negative != "no class":
        index = NEGATIVE[form.negative](target, x.shape[form.dim])
        index, mark = index.masked_fill(target == left_out, UNREACHED), UNREACHED
    loss = reduced(x, index, mark, reduction)
    if reduction != "sum":
        return loss
    return REDUCTIONS[form.reduction](loss, (target != left_out).sum(), target.numel())
