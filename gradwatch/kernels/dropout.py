"""Dropout with a bias before it and a residual behind it; the mask is drawn again, never kept.

Forward, where ``keep`` is 1 with probability ``1 - p``::

    y = keep * (x + bias) / (1 - p) + residual

Backward, from the same seed::

    dx = keep * dy / (1 - p)        dbias = sum over rows of dx        dresidual = dy

Forward reads x and residual and writes y; backward reads dy and writes dx: 2 passes. The stock way
keeps a mask of one byte an element, reads it back, and sums dx in a pass of its own: 3.5 passes in
bfloat16. The gradient of the residual is dy itself, which costs nothing.

The mask: Philox4x32-10 with the seed as its key and ``(column, lane, 0, 0)`` as its counter gives
128 bits, 16 for each of 8 elements; an element stays if its 16 bits, as a number, are at least
``round(65536 p)``. 16 bits an element halve the arithmetic of 32, which would take longer than the
memory. A lane serves 8 rows of a column, ROWS apart, so that loads stay whole vectors: row ``r``
takes bits ``16 j`` onwards of lane ``r // (8 ROWS) * ROWS + r % ROWS``, with ``j = r // ROWS % 8``;
ROWS depends on N and the dtype alone.

The seed is one int64 that ``torch.randint`` draws on the device of x from that device's default
generator: `torch.manual_seed`, `fork_rng`, checkpointing and CUDA graphs hold as for any draw, and
nothing waits for the device. Masks are not those of stock dropout under the same seed: that takes
its numbers from the generator in an order of its own, and advances it by another amount.

Layout: rows whose elements lie side by side; a program walks down a band of rows of one block of
columns, 8 tiles of ROWS x BLOCK at a time.

Legend: M rows, N columns.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradwatch.kernels._bands import as_rows, matrix, plan_bands
from gradwatch.kernels._library import nothing, register
from gradwatch.kernels._triton import jit, launch, tl
from gradwatch.kernels.column_sums import column_sums
from gradwatch.kernels.limits import MAX_DROPOUT

__all__ = ["dropout"]

_STEP = 8
# Philox's words take registers, too: no more elements a thread than fill one vector.
_VECTOR_BYTES = 16
_LEVELS = 65536
_SEEDS = 2**63 - 1


@jit()
def _sixteen_bits(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor, J: tl.constexpr
) -> tl.tensor:
    word = (a if J < 2 else b) if J < 4 else (c if J < 6 else d)  # noqa: PLR2004 - two of each
    return ((word >> (16 * (J % 2))) & 0xFFFF).to(tl.int32)


@jit(do_not_specialize=("M", "band", "threshold", "scale"))
def _dropout(
    x_ptr: tl.tensor,
    b_ptr: tl.tensor,
    r_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    y_ptr: tl.tensor,
    sum_ptr: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    x_stride: tl.tensor,
    r_stride: tl.tensor,
    band: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(N, BLOCK)
    share = pid // blocks
    last = tl.minimum((share + 1) * band, M)
    col = (pid % blocks) * BLOCK + tl.arange(0, BLOCK)
    seed = tl.load(seed_ptr)
    # Python floats are float32 from eager code and float64 from Inductor's.
    factor = tl.full((ROWS, BLOCK), scale, tl.float32)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    if b_ptr is not None:
        b = tl.load(b_ptr + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    for first in range(share * band, last, ROWS * 8):
        lane = (first // 8 + tl.arange(0, ROWS)).to(tl.uint32)[:, None]
        w0, w1, w2, w3 = tl.philox(seed, col.to(tl.uint32)[None, :], lane, lane * 0, lane * 0)
        for j in tl.static_range(8):
            row = (first + j * ROWS + tl.arange(0, ROWS))[:, None]
            live = (row < last) & (col < N)[None, :]
            keep = _sixteen_bits(w0, w1, w2, w3, j) >= threshold
            x = tl.load(x_ptr + row * x_stride + col[None, :], mask=live, other=0.0).to(tl.float32)
            if b_ptr is not None:
                x += b
            # A product, so that what is not finite stays so where it is dropped, as in torch.
            y = x * tl.where(keep, factor, 0.0)
            if r_ptr is not None:
                at = r_ptr + row * r_stride + col[None, :]
                y += tl.load(at, mask=live, other=0.0).to(tl.float32)
            if y_ptr is not None:
                tl.store(y_ptr + row * N + col[None, :], y.to(y_ptr.dtype.element_ty), mask=live)
            if sum_ptr is not None:
                total += y
    if sum_ptr is not None:
        tl.store(sum_ptr + share * N + col, tl.sum(total, 0), mask=col < N)


def _run(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    seed: Tensor,
    p: float,
    y: Tensor | None,
    sums: bool,
) -> Tensor | None:
    """Launch the one kernel of both passes; return partial sums of what it writes."""
    (m, n), x_MN = matrix(x, x.shape[-1]), as_rows(x, x.shape[-1])
    r_MN = None if residual is None else as_rows(residual, n)
    plan = plan_bands(m, n, x.device, step=_STEP, per_thread=_VECTOR_BYTES // x.itemsize)
    partial = x.new_empty((plan.bands, n), dtype=torch.float32) if sums else None
    launch(
        _dropout, (plan.bands * plan.blocks,), x_MN, bias, r_MN, seed, y, partial,
        m, n, x_MN.stride(0), 0 if r_MN is None else r_MN.stride(0), plan.band,
        round(p * _LEVELS), 1.0 / (1.0 - p), ROWS=plan.rows, BLOCK=plan.block,
        num_warps=plan.warps,
    )  # fmt: skip
    return partial


def _launch_forward(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, seed: Tensor, p: float
) -> Tensor:
    y = _fake_forward(x, bias, residual, seed, p)
    _run(x, bias, residual, seed, p, y, sums=False)
    return y


def _fake_forward(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, seed: Tensor, p: float
) -> Tensor:
    return x.new_empty(x.shape)


def _launch_backward(
    dy: Tensor, seed: Tensor, p: float, needs: list[bool], bias_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    dx = dy.new_empty(dy.shape) if needs[0] else None
    partial = _run(dy, None, None, seed, p, dx, sums=needs[1])
    db = nothing(dy) if partial is None else column_sums(partial, bias_dtype)
    return nothing(dy) if dx is None else dx, db


def _fake_backward(
    dy: Tensor, seed: Tensor, p: float, needs: list[bool], bias_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    db = dy.new_empty(dy.shape[-1], dtype=bias_dtype) if needs[1] else nothing(dy)
    return dy.new_empty(dy.shape) if needs[0] else nothing(dy), db


_dropout_forward = register(
    "dropout_forward(Tensor x, Tensor? bias, Tensor? residual, Tensor seed, float p) -> Tensor",
    _launch_forward, _fake_forward,
)  # fmt: skip
_dropout_backward = register(
    "dropout_backward(Tensor dy, Tensor seed, float p, bool[2] needs, ScalarType bias_dtype) "
    "-> (Tensor, Tensor)",
    _launch_backward, _fake_backward,
)  # fmt: skip


class _Dropout(torch.autograd.Function):
    """Dropout by the mask of a seed: linear, so that its backward is the same function of dy."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, residual: Tensor | None, seed: Tensor, p: float
    ) -> Any:
        ctx.p, ctx.bias_dtype = p, torch.float32 if bias is None else bias.dtype
        ctx.save_for_backward(seed)
        return _dropout_forward(x, bias, residual, seed, p)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy,), (seed,), (need_x, need_b, need_r) = (
            grads,
            ctx.saved_tensors,
            ctx.needs_input_grad[:3],
        )
        dx, db = None, None
        if torch.is_grad_enabled():
            apply: Callable[..., Tensor] = _Dropout.apply
            dx = apply(dy, None, None, seed, ctx.p)
            db = dx.float().reshape(matrix(dx, dx.shape[-1])).sum(0).to(ctx.bias_dtype)
        elif need_x or need_b:
            dx, db = _dropout_backward(dy, seed, ctx.p, [need_x, need_b], ctx.bias_dtype)
        return dx if need_x else None, db if need_b else None, dy if need_r else None, None, None


def _draw(device: torch.device) -> Tensor:
    return torch.randint(_SEEDS, (1,), device=device)


def dropout(
    x: Tensor,
    p: float,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    seed: Tensor | None = None,
) -> Tensor:
    """Add a bias, zero elements with probability p, scale the others, add a residual.

    Args:
        x: Input, any strides; N columns.
        p: Probability that an element is zeroed, 0 to ``MAX_DROPOUT``, taken to 1 / 65536.
        bias: N elements of any floating dtype, added before dropout.
        residual: Added after; same shape and dtype as x.
        seed: One int64 on the device of x; drawn from its default generator if not given, and
            not drawn at all if p is 0.

    Returns:
        ``residual + dropout(x + bias)``, contiguous, rounded once to the dtype of x.

    Raises:
        ValueError: If p is out of range or shapes do not fit.
    """
    if not 0.0 <= p <= MAX_DROPOUT:
        raise ValueError(f"dropout: p is 0 to {MAX_DROPOUT}; got {p}. Use the stock layer.")
    if x.dim() == 0 or (bias is not None and bias.shape != x.shape[-1:]):
        raise ValueError(
            f"dropout: bias has the last dimension of x, {tuple(x.shape)}; "
            f"got {None if bias is None else tuple(bias.shape)}."
        )
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError(
            f"dropout: residual must be like x, {tuple(x.shape)} {x.dtype}; "
            f"got {tuple(residual.shape)} {residual.dtype}."
        )
    if seed is None:
        seed = _draw(x.device) if p else torch.zeros(1, dtype=torch.int64, device=x.device)
    apply: Callable[..., Tensor] = _Dropout.apply
    return apply(x, None if bias is None else bias.contiguous(), residual, seed, p)
