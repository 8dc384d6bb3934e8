"""Batch normalisation with an optional residual added and an optional ReLU, in two passes each way.

Forward, channel by channel over its M elements, with biased variance::

    h = (x - mean) * rstd       y = relu(h * weight + bias + residual)

Backward, with ``g = dy`` where ``y > 0`` and 0 elsewhere::

    dresidual = g       dbias = sum(g)       dweight = sum(g * h)
    dx = weight * rstd * (g - sum(g) / M - h * sum(g * h) / M)

A sum over the whole batch stands between the passes: forward reads x, then x (and the residual)
and writes y. Backward reads dy and x, then both again and writes dx: 5 passes where ReLU and norm
apart take 8. ReLU's mask is computed again from x; where a residual went into it, forward leaves
one bit an element, and the backward's first pass writes dresidual, which the second reads in place
of dy.

Forward runs Welford's recurrence in every lane and joins lanes and programs by Chan's formula
(doi:10.1080/00031305.1983.10483115): sums of squares would cancel where a mean is large. The
running statistics are returned as new tensors, for the caller to copy.

Layout: see `_channels`. Legend: R rows, C channels, L space, M = R * L, P parts.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.kernels._batch_norm import backward, forward, join, moments
from gradwatch.kernels._channels import (
    Walk,
    dense,
    mask_bytes,
    memory_format,
    unpacked,
    walk,
)
from gradwatch.kernels._library import differentiable, nothing, register
from gradwatch.kernels._triton import launch
from gradwatch.kernels.column_sums import column_sums

__all__ = ["batch_norm"]

_ROWS = 32
_BLOCK = 32


def _tiles(plan: Walk) -> dict[str, Any]:
    return {
        "LAST": plan.last, "ROWS": plan.rows, "BLOCK": plan.block, "num_warps": plan.warps,
    }  # fmt: skip


def _statistics(
    x: Tensor, plan: Walk, running: tuple[Tensor | None, Tensor | None], momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean and rstd of a batch, and the running statistics after it."""
    means, m2s = x.new_empty((2, plan.parts, plan.c), dtype=torch.float32).unbind(0)
    sizes = plan.r, plan.c, plan.l, plan.band
    launch(moments, plan.grid, x, means, m2s, *sizes, **_tiles(plan))
    mean, rstd = torch.empty_like(means[0]), torch.empty_like(means[0])
    old = [None if s is None else s.contiguous() for s in running]
    new = [None if s is None else torch.empty_like(s) for s in old]
    launch(
        join, (-(-plan.c // _BLOCK),), means, m2s, *old, mean, rstd, *new,
        plan.r, plan.parts, plan.c, plan.l, plan.band, momentum, eps,
        ROWS=_ROWS, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    new_mean, new_var = (nothing(mean) if n is None else n for n in new)
    return mean, rstd, new_mean, new_var


def _launch_forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    running_mean: Tensor | None, running_var: Tensor | None, training: bool, momentum: float,
    eps: float, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x_dense = dense(x, x)
    y, bits, *_ = _fake_forward(
        x, residual, weight, bias, running_mean, running_var, training, momentum, eps, relu
    )
    plan = walk(x_dense)
    if training or running_mean is None or running_var is None:
        running = running_mean, running_var
        mean, rstd, *new = _statistics(x_dense, plan, running, momentum, eps)
    else:
        # Copies: these are saved for the backward, and training updates the buffers in place.
        mean, rstd = running_mean.float().clone(), (running_var.float() + eps).rsqrt()
        new = [nothing(mean), nothing(mean)]
    launch(
        forward, plan.grid, x_dense, None if residual is None else dense(residual, x),
        weight, bias, mean, rstd, y, bits if bits.numel() else None,
        plan.r, plan.c, plan.l, plan.band, RELU=relu, **_tiles(plan),
    )  # fmt: skip
    return y, bits, mean, rstd, new[0], new[1]


def _fake_forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    running_mean: Tensor | None, running_var: Tensor | None, training: bool, momentum: float,
    eps: float, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    y = torch.empty_like(x, memory_format=memory_format(x))
    mean = x.new_empty(x.shape[1], dtype=torch.float32)
    new = [
        nothing(mean) if old is None or not training else old.new_empty(old.shape)
        for old in (running_mean, running_var)
    ]
    keep = relu and residual is not None
    bits = x.new_empty(mask_bytes(x) if keep else 0, dtype=torch.uint8)
    return y, bits, mean, torch.empty_like(mean), new[0], new[1]


def _launch_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor,
    bits: Tensor | None, training: bool, relu: bool, needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    need_x, need_r, need_w, need_b = needs
    dy, x = dense(dy, x), dense(x, x)
    plan = walk(x)
    given = weight, bias, mean, rstd
    sizes = plan.r, plan.c, plan.l, plan.band
    dr, sums = torch.empty_like(x) if need_r else None, None
    if training or need_r or need_w or need_b:
        partial = x.new_empty((plan.parts, 2 * plan.c), dtype=torch.float32)
        launch(
            backward, plan.grid, dy, x, *given, bits, None, dr, partial, None,
            *sizes, RELU=relu, **_tiles(plan),
        )  # fmt: skip
        sums = column_sums(partial, torch.float32)
    dx = torch.empty_like(x) if need_x else None
    if need_x:
        # The gradient of the residual is dy with the mask applied: no need for either again.
        g, mask, again = (dy, bits, relu) if dr is None else (dr, None, False)
        launch(
            backward, plan.grid, g, x, *given, mask, sums if training else None, None, None, dx,
            *sizes, RELU=again, **_tiles(plan),
        )  # fmt: skip
    dw, db = (
        nothing(mean) if p is None or sums is None or not need
        else sums.chunk(2)[which].to(p.dtype, copy=True)
        for p, need, which in ((weight, need_w, 1), (bias, need_b, 0))
    )  # fmt: skip
    return nothing(x) if dx is None else dx, nothing(x) if dr is None else dr, dw, db


def _fake_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor,
    bits: Tensor | None, training: bool, relu: bool, needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    like_x = [
        torch.empty_like(x, memory_format=memory_format(x)) if need else nothing(x)
        for need in needs[:2]
    ]
    like_p = [
        torch.empty_like(p) if need and p is not None else nothing(mean)
        for p, need in zip((weight, bias), needs[2:], strict=True)
    ]
    return like_x[0], like_x[1], like_p[0], like_p[1]


_batch_norm_forward = register(
    "batch_norm_forward(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, "
    "Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps, "
    "bool relu) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _launch_forward, _fake_forward,
)  # fmt: skip
_batch_norm_backward = register(
    "batch_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, "
    "Tensor rstd, Tensor? bits, bool training, bool relu, bool[4] needs) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _launch_backward, _fake_backward,
)  # fmt: skip


class _BatchNorm(torch.autograd.Function):
    """``(y, running mean, running var)`` of ``x``, a residual, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None,
        running_mean: Tensor | None, running_var: Tensor | None, training: bool, momentum: float,
        eps: float, relu: bool,
    ) -> Any:  # fmt: skip
        y, bits, mean, rstd, new_mean, new_var = _batch_norm_forward(
            x, residual, weight, bias, running_mean, running_var, training, momentum, eps, relu
        )
        ctx.mark_non_differentiable(new_mean, new_var)
        ctx.set_materialize_grads(False)
        ctx.training, ctx.eps, ctx.relu = training, eps, relu
        keep = relu and residual is not None
        ctx.save_for_backward(x, weight, bias, mean, rstd, bits if keep else None)
        return y, new_mean, new_var

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dy = grads[0]
        if dy is None:
            return (None,) * 10
        needs = list(ctx.needs_input_grad[:4])
        found = (_differentiable if torch.is_grad_enabled() else _fused)(ctx, needs, dy)
        return *(g if need else None for g, need in zip(found, needs, strict=True)), *(None,) * 6


def _fused(ctx: Any, needs: list[bool], dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, rstd, bits = ctx.saved_tensors
    found: tuple[Tensor, ...] = _batch_norm_backward(
        dy, x, weight, bias, mean, rstd, bits, ctx.training, ctx.relu, needs
    )
    return found


def _differentiable(ctx: Any, needs: list[bool], dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, rstd, bits = ctx.saved_tensors

    def stock(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        return _stock(x, w, b, None if ctx.training else (mean, rstd), ctx.eps).to(x.dtype)

    g = dy
    if bits is not None:
        g = dy * unpacked(bits, x)
    elif ctx.relu:
        with torch.no_grad():
            on = ~(stock(x, weight, bias) <= 0)
        g = dy * on
    if not (needs[0] or needs[2] or needs[3]):
        return None, g, None, None
    dx, dw, db = differentiable(stock, (x, weight, bias), [needs[0], *needs[2:]], g)
    return dx, g, dw, db


def _stock(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:  # fmt: skip
    w, b = (None if p is None else p.float() for p in (weight, bias))
    if running is None:
        return F.batch_norm(x.float(), None, None, w, b, training=True, eps=eps)
    mean, rstd = (s.view(-1, *[1] * (x.dim() - 2)) for s in running)
    h = (x.float() - mean) * rstd
    h = h if w is None else h * w.view_as(mean)
    return h if b is None else h + b.view_as(mean)


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    relu: bool = False,
) -> Tensor:
    """Normalise each channel over the batch, add a residual, apply ReLU.

    Args:
        x: Input of shape ``(batch, channels, ...)``, any strides, not empty.
        running_mean: Mean used outside training; updated in training, in place.
        running_var: Variance used outside training; updated in training (unbiased), in place.
        weight: Scale of each channel.
        bias: Shift of each channel.
        residual: Added before ReLU; same shape and dtype as x.
        training: Whether to use the statistics of the batch.
        momentum: Share of the batch in the new running statistics.
        eps: Added to the variance.
        relu: Whether to apply ReLU.

    Returns:
        The result, in the dtype and memory format of x.

    Raises:
        ValueError: If x has one value a channel in training, no running statistics outside it, or
            another shape or dtype than the residual.
    """
    _verify(x, residual, running_mean, running_var, training)
    weight, bias = (None if p is None else p.contiguous() for p in (weight, bias))
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _BatchNorm.apply
    y, new_mean, new_var = apply(
        x, residual, weight, bias, running_mean, running_var, training, momentum, eps, relu
    )
    if training and running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.copy_(new_mean)
            running_var.copy_(new_var)
    return y


def _verify(
    x: Tensor, residual: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool,
) -> None:  # fmt: skip
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError(
            f"batch_norm: residual must be like x, {tuple(x.shape)} {x.dtype}; "
            f"got {tuple(residual.shape)} {residual.dtype}."
        )
    if (running_mean is None) != (running_var is None):
        raise ValueError("batch_norm: give running_mean and running_var, or neither.")
    if not training and running_mean is None:
        raise ValueError("batch_norm: outside training it takes running_mean and running_var.")
    if training and x.numel() == x.shape[1]:
        raise ValueError(  # In the words of torch.nn.functional.batch_norm.
            f"Expected more than 1 value per channel when training, got input size {x.size()}"
        )
