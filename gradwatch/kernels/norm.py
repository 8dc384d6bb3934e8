"""LayerNorm and RMSNorm over the last dimensions, with an optional residual added first.

Forward, row by row, with ``s = x + residual`` (or ``x``)::

    mean = sum(s) / N  (0 for RMSNorm)      rstd = 1 / sqrt(sum((s - mean)^2) / N + eps)
    y = (s - mean) * rstd * weight + bias

Backward, with ``h = (s - mean) * rstd`` and ``g = dy * weight``::

    ds = rstd * (g - sum(g) / N - h * sum(g * h) / N)  (without sum(g) for RMSNorm)
    dweight = sum over rows of dy * h       dbias = sum over rows of dy

Every tensor is read and written once, in its own dtype: under autocast the stock layer copies x to
float32, keeps the copy, and reads it and dy once more for dweight and dbias. Here one program takes
a band of rows, keeps the sums of dweight and dbias in registers while it writes ds, and leaves one
float32 row of partial sums. mean and rstd (float32, 8 bytes a row) are all that is saved beside s.

Layout: rows are contiguous; a tile is ROWS x BLOCK_N with a whole row in it, so that mean and
variance need no second read. 16 elements a thread keep s, dy, weight and both sums in registers;
with twice as many a row of 16384 would spill, so wider rows than ``MAX_NORM_ELEMENTS`` are refused.

Legend: M rows, N columns (elements of ``normalized_shape``).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.kernels._library import differentiable, nothing, promoted, register
from gradwatch.kernels._tiles import plan_rows
from gradwatch.kernels._triton import jit, launch, tl
from gradwatch.kernels.column_sums import column_sums
from gradwatch.kernels.limits import MAX_NORM_ELEMENTS

__all__ = ["norm"]


@jit(do_not_specialize=("M", "band"))
def _forward(
    x_ptr: tl.tensor, r_ptr: tl.tensor, w_ptr: tl.tensor, b_ptr: tl.tensor, y_ptr: tl.tensor,
    s_ptr: tl.tensor, mean_ptr: tl.tensor, rstd_ptr: tl.tensor, M: tl.tensor, N: tl.tensor,
    band: tl.tensor, eps: tl.tensor, CENTER: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    last = tl.minimum((pid + 1) * band, M)
    col = tl.arange(0, BLOCK_N)
    # Python floats are float32 from eager code and float64 from Inductor's.
    eps_M = tl.full((ROWS,), eps, tl.float32)
    if w_ptr is not None:
        w = tl.load(w_ptr + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    if b_ptr is not None:
        b = tl.load(b_ptr + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    for first in range(pid * band, last, ROWS):
        row = first + tl.arange(0, ROWS)
        live = (row < last)[:, None] & (col < N)[None, :]
        at = row[:, None] * N + col[None, :]
        s = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32)
        if r_ptr is not None:
            s += tl.load(r_ptr + at, mask=live, other=0.0).to(tl.float32)
            rounded = s.to(s_ptr.dtype.element_ty)
            tl.store(s_ptr + at, rounded, mask=live)
            # The backward will see the rounded sum: the statistics must be those of what it sees.
            s = rounded.to(tl.float32)
        if CENTER:
            mean = tl.sum(s, 1) / N
            tl.store(mean_ptr + row, mean, mask=row < last)
            s = tl.where(live, s - mean[:, None], 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(s * s, 1) / N + eps_M)
        tl.store(rstd_ptr + row, rstd, mask=row < last)
        y = s * rstd[:, None]
        if w_ptr is not None:
            y *= w
        if b_ptr is not None:
            y += b
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=live)


@jit(do_not_specialize=("M", "band"))
def _backward(
    dy_ptr: tl.tensor, s_ptr: tl.tensor, w_ptr: tl.tensor, mean_ptr: tl.tensor, rstd_ptr: tl.tensor,
    through_ptr: tl.tensor, ds_ptr: tl.tensor, dw_ptr: tl.tensor, db_ptr: tl.tensor, M: tl.tensor,
    N: tl.tensor, band: tl.tensor, CENTER: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
) -> None:  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    last = tl.minimum((pid + 1) * band, M)
    col = tl.arange(0, BLOCK_N)
    if w_ptr is not None:
        w = tl.load(w_ptr + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    dw = tl.zeros((ROWS, BLOCK_N), dtype=tl.float32)
    db = tl.zeros((ROWS, BLOCK_N), dtype=tl.float32)
    for first in range(pid * band, last, ROWS):
        row = first + tl.arange(0, ROWS)
        live = (row < last)[:, None] & (col < N)[None, :]
        at = row[:, None] * N + col[None, :]
        h = tl.load(s_ptr + at, mask=live, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=live, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row, mask=row < last, other=0.0)[:, None]
        if CENTER:
            h -= tl.load(mean_ptr + row, mask=row < last, other=0.0)[:, None]
        # Dead columns hold -mean by now; their dy is 0, so no sum takes them in.
        h *= rstd
        if dw_ptr is not None:
            dw += dy * h
        if db_ptr is not None:
            db += dy
        if ds_ptr is not None:
            g = dy * w if w_ptr is not None else dy
            ds = g - h * (tl.sum(g * h, 1) / N)[:, None]
            if CENTER:
                ds -= (tl.sum(g, 1) / N)[:, None]
            ds *= rstd
            if through_ptr is not None:
                ds += tl.load(through_ptr + at, mask=live, other=0.0).to(tl.float32)
            tl.store(ds_ptr + at, ds.to(ds_ptr.dtype.element_ty), mask=live)
    if dw_ptr is not None:
        tl.store(dw_ptr + pid * N + col, tl.sum(dw, 0), mask=col < N)
    if db_ptr is not None:
        tl.store(db_ptr + pid * N + col, tl.sum(db, 0), mask=col < N)


def _launch_forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, n: int,
    eps: float, center: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    y, s, mean, rstd = _fake_forward(x, residual, weight, bias, n, eps, center, dtype)
    m, plan = rstd.numel(), plan_rows(rstd.numel(), n, x.device)
    launch(
        _forward, (plan.programs,),
        x.contiguous(), None if residual is None else residual.contiguous(),
        weight, bias, y, None if residual is None else s, mean if center else None, rstd,
        m, n, plan.band, eps,
        CENTER=center, ROWS=plan.rows, BLOCK_N=plan.block, num_warps=plan.warps,
    )  # fmt: skip
    return y, s, mean, rstd


def _fake_forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, n: int,
    eps: float, center: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rstd = x.new_empty(x.numel() // n, dtype=torch.float32)
    mean = torch.empty_like(rstd) if center else nothing(rstd)
    s = nothing(x) if residual is None else x.new_empty(x.shape, dtype=promoted(x, residual))
    return x.new_empty(x.shape, dtype=dtype), s, mean, rstd


def _launch_backward(
    dy: Tensor, s: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor,
    through: Tensor | None, n: int, center: bool, needs: list[bool], bias_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    m, plan = rstd.numel(), plan_rows(rstd.numel(), n, s.device)
    ds = s.new_empty(s.shape) if needs[0] else None
    # No program runs on an empty batch: its sums are the zeros of an empty sum.
    sums = [rstd.new_empty((plan.programs, n)) if need else None for need in needs[1:]]
    launch(
        _backward, (plan.programs,),
        dy.contiguous(), s.contiguous(), weight, mean if center else None, rstd,
        None if through is None else through.contiguous(), ds, *sums,
        m, n, plan.band, CENTER=center, ROWS=plan.rows, BLOCK_N=plan.block, num_warps=plan.warps,
    )  # fmt: skip
    dtypes = (weight.dtype if weight is not None else bias_dtype, bias_dtype)
    dw, db = (
        nothing(rstd) if partial is None else column_sums(partial, dtype)
        for partial, dtype in zip(sums, dtypes, strict=True)
    )
    return nothing(s) if ds is None else ds, dw, db


def _fake_backward(
    dy: Tensor, s: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor,
    through: Tensor | None, n: int, center: bool, needs: list[bool], bias_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    ds = s.new_empty(s.shape) if needs[0] else nothing(s)
    dtypes = (weight.dtype if weight is not None else bias_dtype, bias_dtype)
    dw, db = (
        s.new_empty(n, dtype=dtype) if need else nothing(rstd)
        for need, dtype in zip(needs[1:], dtypes, strict=True)
    )
    return ds, dw, db


_norm_forward = register(
    "norm_forward(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, SymInt n, float eps, "
    "bool center, ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor)",
    _launch_forward, _fake_forward,
)  # fmt: skip
_norm_backward = register(
    "norm_backward(Tensor dy, Tensor s, Tensor? weight, Tensor mean, Tensor rstd, Tensor? through, "
    "SymInt n, bool center, bool[3] needs, ScalarType bias_dtype) -> (Tensor, Tensor, Tensor)",
    _launch_backward, _fake_backward,
)  # fmt: skip


class _Norm(torch.autograd.Function):
    """``y`` of ``x``, or ``(y, s)`` of ``x`` and ``residual``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None,
        n: int, eps: float, center: bool, dtype: torch.dtype,
    ) -> Any:  # fmt: skip
        y, s, mean, rstd = _norm_forward(x, residual, weight, bias, n, eps, center, dtype)
        ctx.set_materialize_grads(False)
        ctx.n, ctx.eps, ctx.center, ctx.dtype = n, eps, center, dtype
        ctx.save_for_backward(x if residual is None else s, weight, bias, mean, rstd)
        return y if residual is None else (y, s)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dy, through = grads[0], grads[1] if len(grads) > 1 else None
        need_x, need_r, need_w, need_b = ctx.needs_input_grad[:4]
        needs = [need_x or need_r, need_w, need_b]
        if dy is None:
            ds, dw, db = through, None, None
        elif torch.is_grad_enabled():
            ds, dw, db = _differentiable(ctx, needs, dy, through)
        else:
            ds, dw, db = _fused(ctx, needs, dy, through)
        return ds if need_x else None, ds if need_r else None, dw, db, None, None, None, None


def _fused(
    ctx: Any, needs: list[bool], dy: Tensor, through: Tensor | None
) -> tuple[Tensor | None, ...]:
    s, weight, bias, mean, rstd = ctx.saved_tensors
    bias_dtype = torch.float32 if bias is None else bias.dtype
    ds, dw, db = _norm_backward(
        dy, s, weight, mean, rstd, through, ctx.n, ctx.center, needs, bias_dtype
    )
    return ds, dw.view_as(weight) if needs[1] else None, db.view_as(bias) if needs[2] else None


def _differentiable(
    ctx: Any, needs: list[bool], dy: Tensor, through: Tensor | None
) -> tuple[Tensor | None, ...]:
    s, weight, bias, _, _ = ctx.saved_tensors
    ds, dw, db = differentiable(
        lambda s, w, b: _stock(s, w, b, ctx.n, ctx.eps, ctx.center).to(ctx.dtype),
        (s, weight, bias), needs, dy,
    )  # fmt: skip
    return ds if ds is None or through is None else ds + through, dw, db


def _stock(
    s: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, eps: float, center: bool
) -> Tensor:
    rows = s.float().reshape(-1, n)
    w, b = (None if p is None else p.float().reshape(n) for p in (weight, bias))
    if center:
        return F.layer_norm(rows, (n,), w, b, eps).view(s.shape)
    y = F.rms_norm(rows, (n,), w, eps)
    return (y if b is None else y + b).view(s.shape)


def norm(
    x: Tensor,
    n: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    eps: float = 1e-5,
    center: bool = True,
    dtype: torch.dtype | None = None,
) -> Any:
    """Normalise each row of n elements, forward and backward in one pass each.

    Args:
        x: Input, any strides; the last dimensions hold n elements together.
        n: Elements of a row, at most ``MAX_NORM_ELEMENTS``.
        weight: Scale with n elements, of any floating dtype.
        bias: Shift with n elements, of any floating dtype.
        residual: Added to x first, in the type torch promotes the two to; of the shape of x.
        eps: Added to the variance.
        center: Subtract the mean (LayerNorm) or not (RMSNorm).
        dtype: Of the result; that of x + residual by default.

    Returns:
        ``y``, or ``(y, x + residual)`` with a residual.

    Raises:
        ValueError: If n is over ``MAX_NORM_ELEMENTS``, or residual and x differ in shape.
    """
    if not 0 < n <= MAX_NORM_ELEMENTS:
        raise ValueError(
            f"norm: rows of 1 to {MAX_NORM_ELEMENTS} elements; got {n}. Use the stock layer."
        )
    if residual is not None and residual.shape != x.shape:
        shapes = tuple(x.shape), tuple(residual.shape)
        raise ValueError(f"norm: residual must be like x, {shapes[0]}; got {shapes[1]}.")
    weight, bias = (None if p is None else p.contiguous() for p in (weight, bias))
    apply: Callable[..., Any] = _Norm.apply
    return apply(x, residual, weight, bias, n, eps, center, dtype or promoted(x, residual))
