"""Softmax cross-entropy that saves one number a row; the formula is in `kernels.cross_entropy`."""

import torch
from torch import Tensor, nn

from gradwatch.fused._checks import autocast_dtype, refuse_call

__all__ = ["cross_entropy", "forward", "refuse"]


def cross_entropy(
    input: Tensor,  # noqa: A002 - the stock name
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Take the cross-entropy of logits and class indices, as ``torch.nn.functional.cross_entropy``.

    Classes lie along the **last** dimension, also of inputs with more than two.

    Args:
        input: Logits, of shape ``(..., classes)``.
        target: Class indices, int64, of shape ``(...)``.
        weight: Weight of each class.
        ignore_index: Target that counts for nothing.
        reduction: ``"mean"`` (weighted), ``"sum"`` or ``"none"``.
        label_smoothing: Share of the loss spread over all classes, 0 to 1.
        dtype: Of the loss; that of input by default. Under CUDA's autocast the stock layer's is
            float32.

    Returns:
        The loss: a scalar, or of the shape of target with ``"none"``.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If shapes or reduction do not fit.
    """
    from gradwatch.kernels.cross_entropy import cross_entropy as fused

    return fused(
        input,
        target,
        weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        dtype=dtype,
    )


def forward(self: nn.CrossEntropyLoss, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
    """Stand in for ``CrossEntropyLoss.forward``; what the kernel cannot take goes the stock way."""
    if refuse(self, input, target) is not None:
        return nn.CrossEntropyLoss.forward(self, input, target)
    return cross_entropy(
        input,
        target,
        self.weight,
        ignore_index=self.ignore_index,
        reduction=self.reduction,
        label_smoothing=self.label_smoothing,
        dtype=autocast_dtype(input),
    )


def refuse(module: nn.CrossEntropyLoss, x: Tensor, target: Tensor) -> str | None:
    """Say why the kernel cannot take logits and targets.

    Args:
        module: The module.
        x: Its logits.
        target: Its targets.

    Returns:
        The reason, or ``None`` if it can.
    """
    if target.dtype != torch.int64:
        return f"its targets are {target.dtype}: only class indices are fused, in int64"
    if x.dim() not in (1, 2):
        return (
            f"its input has {x.dim()} dimensions: classes must come last, and torch's come second"
        )
    if x.shape[:-1] != target.shape or x.shape[-1] == 0:
        return f"its target of shape {tuple(target.shape)} does not fit {tuple(x.shape)}"
    if target.device != x.device:
        return f"its targets are on {target.device}, its input on {x.device}"
    return refuse_call(x, module.weight)
