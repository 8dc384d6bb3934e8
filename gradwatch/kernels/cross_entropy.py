"""Softmax cross-entropy over the last dimension, out of place, with only the log-sum-exp saved.

Forward, row by row, with class weights ``c`` (1 without), smoothing ``a`` over V classes::

    lse = log(sum(exp(x)))
    loss = -(1 - a) * c[t] * (x[t] - lse) - a / V * sum(c * (x - lse))

Backward, for the gradient ``d`` of the row's loss and ``p = exp(x - lse)``::

    dx = d * (p * ((1 - a) * c[t] + a / V * sum(c)) - (1 - a) * c[t] * [v == t] - a / V * c)

The logits are read once forward (a running maximum and sum), read once and their gradient written
once backward: 2 + 4 bytes an element in bfloat16. The stock operation converts to float32 and
writes, keeps and reads a log-softmax as large as the logits. The gradient has a tensor of its own:
writing it over the logits would save memory and break whoever looks at them later.

Layout: rows are contiguous. Forward, a program walks along one row in blocks of ``_BLOCK``.
Backward every block of every row is a program of its own, so that a few long rows fill a GPU too.

Legend: M rows, V classes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.kernels._library import differentiable, register
from gradwatch.kernels._triton import jit, launch, tl

__all__ = ["REDUCTIONS", "cross_entropy"]

REDUCTIONS = ("mean", "sum", "none")
_BLOCK = 4096
_WARPS = 8


@jit()
def _forward(
    x_ptr: tl.tensor, t_ptr: tl.tensor, c_ptr: tl.tensor, csum_ptr: tl.tensor, loss_ptr: tl.tensor,
    lse_ptr: tl.tensor, V: tl.tensor, stride: tl.tensor, ignore: tl.tensor, smoothing: tl.tensor,
    SMOOTH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(t_ptr + row)
    if target == ignore:
        tl.store(loss_ptr + row, 0.0)
        tl.store(lse_ptr + row, 0.0)
    else:
        top = float("-inf")
        total = 0.0
        smooth = 0.0
        for first in range(0, V, BLOCK):
            col = first + tl.arange(0, BLOCK)
            at = x_ptr + row * stride + col
            x = tl.load(at, mask=col < V, other=float("-inf")).to(tl.float32)
            new = tl.maximum(top, tl.max(x, 0))
            # While all is -inf, -inf - -inf would be NaN and poison the finite rest of the row.
            pivot = tl.where(new == float("-inf"), 0.0, new)
            total = total * tl.exp(top - pivot) + tl.sum(tl.exp(x - pivot), 0)
            top = new
            if SMOOTH:
                if c_ptr is not None:
                    x *= tl.load(c_ptr + col, mask=col < V, other=0.0).to(tl.float32)
                smooth += tl.sum(tl.where(col < V, x, 0.0), 0)
        lse = top + tl.log(total)
        # A target that is no class answers with NaN: loud, and never a read outside the row.
        known = (target >= 0) & (target < V)
        x_t = tl.load(x_ptr + row * stride + target, mask=known, other=float("nan")).to(tl.float32)
        loss = lse - x_t
        if c_ptr is not None:
            loss *= tl.load(c_ptr + target, mask=known, other=0.0).to(tl.float32)
        if SMOOTH:
            mass = tl.load(csum_ptr)
            loss = (1.0 - smoothing) * loss + smoothing / V * (mass * lse - smooth)
        tl.store(loss_ptr + row, loss)
        tl.store(lse_ptr + row, lse)


@jit()
def _backward(
    d_ptr: tl.tensor, x_ptr: tl.tensor, t_ptr: tl.tensor, c_ptr: tl.tensor, csum_ptr: tl.tensor,
    lse_ptr: tl.tensor, dx_ptr: tl.tensor, V: tl.tensor, stride: tl.tensor, d_stride: tl.tensor,
    ignore: tl.tensor, smoothing: tl.tensor, SMOOTH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(V, BLOCK)
    row = pid // blocks
    col = (pid % blocks) * BLOCK + tl.arange(0, BLOCK)
    out = dx_ptr + row * V + col
    target = tl.load(t_ptr + row)
    if target == ignore:
        tl.store(out, tl.zeros((BLOCK,), dx_ptr.dtype.element_ty), mask=col < V)
    else:
        x = tl.load(x_ptr + row * stride + col, mask=col < V, other=0.0).to(tl.float32)
        p = tl.exp(x - tl.load(lse_ptr + row))
        known = (target >= 0) & (target < V)
        hard = tl.where(known, 1.0, float("nan"))
        if c_ptr is not None:
            hard *= tl.load(c_ptr + target, mask=known, other=0.0).to(tl.float32)
        if SMOOTH:
            hard *= 1.0 - smoothing
            share = smoothing / V
            soft = share
            if c_ptr is not None:
                soft *= tl.load(c_ptr + col, mask=col < V, other=0.0).to(tl.float32)
            dx = p * (hard + share * tl.load(csum_ptr)) - soft
        else:
            dx = p * hard
        dx -= tl.where(col == target, hard, 0.0)
        dx *= tl.load(d_ptr + row * d_stride)
        tl.store(out, dx.to(dx_ptr.dtype.element_ty), mask=col < V)


def _rows(x_MV: Tensor) -> Tensor:
    return x_MV if x_MV.stride(1) == 1 else x_MV.contiguous()


def _mass(x_MV: Tensor, c_V: Tensor | None, smoothing: float) -> Tensor | None:
    """Return the sum of the class weights, on the device, where smoothing needs it."""
    if smoothing == 0.0:
        return None
    if c_V is None:
        return x_MV.new_full((), x_MV.shape[1], dtype=torch.float32)
    return c_V.sum(dtype=torch.float32)


def _launch_forward(
    x_MV: Tensor, t_M: Tensor, c_V: Tensor | None, ignore: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    loss_M, lse_M = _fake_forward(x_MV, t_M, c_V, ignore, smoothing)
    m, v = x_MV.shape
    rows, mass = _rows(x_MV), _mass(x_MV, c_V, smoothing)
    launch(
        _forward, (m,), rows, t_M.contiguous(), c_V, mass, loss_M, lse_M,
        v, rows.stride(0), ignore, smoothing,
        SMOOTH=smoothing > 0.0, BLOCK=_BLOCK, num_warps=_WARPS,
    )  # fmt: skip
    return loss_M, lse_M


def _fake_forward(
    x_MV: Tensor, t_M: Tensor, c_V: Tensor | None, ignore: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    loss_M = x_MV.new_empty(x_MV.shape[0], dtype=torch.float32)
    return loss_M, torch.empty_like(loss_M)


def _launch_backward(
    d: Tensor, x_MV: Tensor, t_M: Tensor, lse_M: Tensor, c_V: Tensor | None, ignore: int,
    smoothing: float,
) -> Tensor:  # fmt: skip
    dx_MV = _fake_backward(d, x_MV, t_M, lse_M, c_V, ignore, smoothing)
    m, v = x_MV.shape
    rows, mass = _rows(x_MV), _mass(x_MV, c_V, smoothing)
    launch(
        _backward, (m * -(-v // _BLOCK),),
        d, rows, t_M.contiguous(), c_V, mass, lse_M, dx_MV,
        v, rows.stride(0), d.stride(0) if d.dim() else 0, ignore, smoothing,
        SMOOTH=smoothing > 0.0, BLOCK=_BLOCK, num_warps=_WARPS,
    )  # fmt: skip
    return dx_MV


def _fake_backward(
    d: Tensor, x_MV: Tensor, t_M: Tensor, lse_M: Tensor, c_V: Tensor | None, ignore: int,
    smoothing: float,
) -> Tensor:  # fmt: skip
    return x_MV.new_empty(x_MV.shape)


_cross_entropy_forward = register(
    "cross_entropy_forward(Tensor x, Tensor target, Tensor? class_weight, int ignore, "
    "float smoothing) -> (Tensor, Tensor)",
    _launch_forward, _fake_forward,
)  # fmt: skip
_cross_entropy_backward = register(
    "cross_entropy_backward(Tensor d, Tensor x, Tensor target, Tensor lse, Tensor? class_weight, "
    "int ignore, float smoothing) -> Tensor",
    _launch_backward, _fake_backward,
)  # fmt: skip


def _divisor(t_M: Tensor, c_V: Tensor | None, v: int, ignore: int) -> Tensor:
    counted = (t_M != ignore).float()
    if c_V is not None:
        counted = counted * c_V.float()[t_M.clamp(0, v - 1)]
    return counted.sum()


class _CrossEntropy(torch.autograd.Function):
    """The loss of every row, or their reduction."""

    @staticmethod
    def forward(
        ctx: Any, x_MV: Tensor, t_M: Tensor, c_V: Tensor | None, ignore: int, smoothing: float,
        reduction: str, dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        loss_M, lse_M = _cross_entropy_forward(x_MV, t_M, c_V, ignore, smoothing)
        divisor = _divisor(t_M, c_V, x_MV.shape[1], ignore) if reduction == "mean" else None
        ctx.ignore, ctx.smoothing, ctx.reduction, ctx.dtype = ignore, smoothing, reduction, dtype
        ctx.save_for_backward(x_MV, t_M, c_V, lse_M, divisor)
        loss = loss_M if reduction == "none" else loss_M.sum()
        mean_or_sum: Tensor = loss if divisor is None else loss / divisor
        return mean_or_sum.to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x_MV, t_M, c_V, lse_M, divisor = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():
            (dx_MV,) = differentiable(lambda x: _stock(ctx, x, t_M, c_V), (x_MV,), (True,), grad)
        else:
            d = grad.float() if divisor is None else grad.float() / divisor
            dx_MV = _cross_entropy_backward(
                d.contiguous(), x_MV, t_M, lse_M, c_V, ctx.ignore, ctx.smoothing
            )
        return dx_MV, None, None, None, None, None, None


def _stock(ctx: Any, x_MV: Tensor, t_M: Tensor, c_V: Tensor | None) -> Tensor:
    loss: Tensor = F.cross_entropy(
        x_MV.float(),
        t_M,
        None if c_V is None else c_V.float(),
        ignore_index=ctx.ignore,
        reduction=ctx.reduction,
        label_smoothing=ctx.smoothing,
    )
    return loss.to(ctx.dtype)


def cross_entropy(
    x: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Take the cross-entropy of logits and class indices, forward and backward in one pass each.

    A target that is neither a class nor ``ignore_index`` gives NaN. As in torch, the mean over
    rows that are all ignored is NaN as well.

    Args:
        x: Logits, classes along the last dimension.
        target: Class indices, int64, of the shape of x without its last dimension.
        class_weight: Weight of each class.
        ignore_index: Target that counts for nothing.
        label_smoothing: Share of the loss spread over all classes, 0 to 1.
        reduction: ``"mean"`` (weighted), ``"sum"`` or ``"none"``.
        dtype: Of the loss; that of x by default. Stock layers give float32 under autocast.

    Returns:
        The loss: a scalar, or of the shape of target with ``"none"``.

    Raises:
        ValueError: If shapes or reduction do not fit.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"cross_entropy: reduction is one of {REDUCTIONS}; got {reduction!r}.")
    if x.shape[:-1] != target.shape:
        raise ValueError(
            "cross_entropy: target has the shape of the logits without the last dimension, "
            f"{tuple(x.shape[:-1])}; got {tuple(target.shape)}."
        )
    apply: Callable[..., Tensor] = _CrossEntropy.apply
    loss = apply(
        x.reshape(-1, x.shape[-1]), target.reshape(-1),
        None if class_weight is None else class_weight.contiguous(),
        ignore_index, label_smoothing, reduction, dtype or x.dtype,
    )  # fmt: skip
    return loss.view(target.shape) if reduction == "none" else loss
