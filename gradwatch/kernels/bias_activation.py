"""Activation behind a matrix product with a bias, and the bias's gradient in the same pass.

Forward, of what ``F.linear`` gives, bias included::

    y = act(z)      act: relu, gelu (erf) or gelu_tanh

Backward::

    dz = dy * act'(z)       dbias = sum over rows of dz

The product stays torch's, and so does adding the bias: in the product's epilogue it costs nothing
and is rounded once. (Added here, to a product that has been rounded, it would leave ReLU with gates
on the wrong side of 0.) The stock way sums dz in a pass of its own; here one program walks down a
band of rows of one block of columns, keeps the sums of its columns in registers while it writes dz,
and leaves one float32 row of partial sums.

ReLU needs no more of z than its sign: the forward writes one bit an element and the backward reads
dy and the bits, 2.06 passes in bfloat16. GELU reads z again, 3 passes.

Layout: rows whose elements lie side by side; tiles of ROWS x BLOCK. Bit ``n % 32`` of word
``n // 32`` of a row is set where relu lets element n of that row through.

Legend: M rows, N columns, W words of 32 bits a row.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.kernels._bands import as_rows, matrix, plan_bands, tile
from gradwatch.kernels._library import differentiable, nothing, register
from gradwatch.kernels._triton import jit, launch, tl
from gradwatch.kernels.activations import activate, differentiate
from gradwatch.kernels.column_sums import column_sums

__all__ = ["ACTIVATIONS", "bias_activation"]

ACTIVATIONS = ("relu", "gelu", "gelu_tanh")
# With 16 elements a thread the derivative of erf spills on sm_90.
_PER_THREAD = 8


@jit()
def _packed(keep: tl.tensor, ROWS: tl.constexpr, WORDS: tl.constexpr) -> tl.tensor:
    bits = tl.reshape(keep.to(tl.int32), (ROWS, WORDS, 32)) << tl.arange(0, 32)[None, None, :]
    return tl.sum(bits, 2)


@jit()
def _unpacked(word: tl.tensor, ROWS: tl.constexpr, WORDS: tl.constexpr) -> tl.tensor:
    bits = (word[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1
    return tl.reshape(bits, (ROWS, WORDS * 32)) != 0


@jit(do_not_specialize=("M",))
def _forward(
    z_ptr: tl.tensor,
    y_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    z_stride: tl.tensor,
    ACT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(N, BLOCK)
    row = ((pid // blocks) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (pid % blocks) * BLOCK + tl.arange(0, BLOCK)
    live = (row < M) & (col < N)[None, :]
    z = tl.load(z_ptr + row * z_stride + col[None, :], mask=live, other=0.0).to(tl.float32)
    y = activate(z, ACT)
    tl.store(y_ptr + row * N + col[None, :], y.to(y_ptr.dtype.element_ty), mask=live)
    if mask_ptr is not None:
        words = tl.cdiv(N, 32)
        word = ((pid % blocks) * (BLOCK // 32) + tl.arange(0, BLOCK // 32))[None, :]
        # Not z > 0: NaN passes through, forward and backward, as in torch.
        keep = tl.where(z <= 0.0, 0, 1)
        packed = _packed(tl.where(live, keep, 0), ROWS, BLOCK // 32)
        tl.store(mask_ptr + row * words + word, packed, mask=(row < M) & (word < words))


@jit(do_not_specialize=("M", "band"))
def _backward(
    dy_ptr: tl.tensor,
    z_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    dz_ptr: tl.tensor,
    db_ptr: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    dy_stride: tl.tensor,
    z_stride: tl.tensor,
    band: tl.tensor,
    ACT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(N, BLOCK)
    share = pid // blocks
    last = tl.minimum((share + 1) * band, M)
    col = (pid % blocks) * BLOCK + tl.arange(0, BLOCK)
    words = tl.cdiv(N, 32)
    word = ((pid % blocks) * (BLOCK // 32) + tl.arange(0, BLOCK // 32))[None, :]
    db = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for first in range(share * band, last, ROWS):
        row = (first + tl.arange(0, ROWS))[:, None]
        live = (row < last) & (col < N)[None, :]
        dz = tl.load(dy_ptr + row * dy_stride + col[None, :], mask=live, other=0.0).to(tl.float32)
        if mask_ptr is not None:
            kept = (row < last) & (word < words)
            packed = tl.load(mask_ptr + row * words + word, mask=kept, other=0)
            dz = tl.where(_unpacked(packed, ROWS, BLOCK // 32), dz, 0.0)
        else:
            z = tl.load(z_ptr + row * z_stride + col[None, :], mask=live, other=0.0).to(tl.float32)
            dz *= differentiate(z, ACT)
        if db_ptr is not None:
            db += dz
        if dz_ptr is not None:
            out = dz_ptr + row * N + col[None, :]
            tl.store(out, dz.to(dz_ptr.dtype.element_ty), mask=live)
    if db_ptr is not None:
        tl.store(db_ptr + share * N + col, tl.sum(db, 0), mask=col < N)


def _launch_forward(z: Tensor, act: str) -> tuple[Tensor, Tensor]:
    y, mask = _fake_forward(z, act)
    (m, n), z_MN = matrix(z, z.shape[-1]), as_rows(z, z.shape[-1])
    rows, block, warps = tile(n)
    launch(
        _forward, (-(-m // rows) * -(-n // block),),
        z_MN, y, mask if act == "relu" else None, m, n, z_MN.stride(0),
        ACT=act, ROWS=rows, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return y, mask


def _fake_forward(z: Tensor, act: str) -> tuple[Tensor, Tensor]:
    words = (*z.shape[:-1], (z.shape[-1] + 31) // 32) if act == "relu" else (0,)
    return z.new_empty(z.shape), z.new_empty(words, dtype=torch.int32)


def _launch_backward(
    dy: Tensor,
    z: Tensor | None,
    mask: Tensor | None,
    act: str,
    needs: list[bool],
    bias_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    (m, n), dy_MN = matrix(dy, dy.shape[-1]), as_rows(dy, dy.shape[-1])
    z_MN = None if z is None else as_rows(z, n)
    plan = plan_bands(m, n, dy.device, per_thread=_PER_THREAD)
    dz = dy.new_empty(dy.shape) if needs[0] else None
    partial = dy.new_empty((plan.bands, n), dtype=torch.float32) if needs[1] else None
    launch(
        _backward, (plan.bands * plan.blocks,), dy_MN, z_MN, mask, dz, partial,
        m, n, dy_MN.stride(0), 0 if z_MN is None else z_MN.stride(0), plan.band,
        ACT=act, ROWS=plan.rows, BLOCK=plan.block, num_warps=plan.warps,
    )  # fmt: skip
    db = nothing(dy) if partial is None else column_sums(partial, bias_dtype)
    return nothing(dy) if dz is None else dz, db


def _fake_backward(
    dy: Tensor,
    z: Tensor | None,
    mask: Tensor | None,
    act: str,
    needs: list[bool],
    bias_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    db = dy.new_empty(dy.shape[-1], dtype=bias_dtype) if needs[1] else nothing(dy)
    return dy.new_empty(dy.shape) if needs[0] else nothing(dy), db


_bias_activation_forward = register(
    "bias_activation_forward(Tensor z, str act) -> (Tensor, Tensor)",
    _launch_forward, _fake_forward,
)  # fmt: skip
_bias_activation_backward = register(
    "bias_activation_backward(Tensor dy, Tensor? z, Tensor? mask, str act, bool[2] needs, "
    "ScalarType bias_dtype) -> (Tensor, Tensor)",
    _launch_backward, _fake_backward,
)  # fmt: skip


class _BiasActivation(torch.autograd.Function):
    """``act(z)`` of a z that holds the bias; relu saves bits, gelu saves z."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor | None, act: str) -> Any:
        y, mask = _bias_activation_forward(z, act)
        ctx.act, ctx.bias_dtype = act, torch.float32 if bias is None else bias.dtype
        if act == "relu":
            ctx.save_for_backward(None, None, mask)
        else:
            ctx.save_for_backward(z, bias, None)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy,), (z, bias, mask), needs = grads, ctx.saved_tensors, list(ctx.needs_input_grad[:2])
        if not torch.is_grad_enabled():
            dz, db = _bias_activation_backward(dy, z, mask, ctx.act, needs, ctx.bias_dtype)
        elif mask is None:
            dz, db = differentiable(lambda z, b: _stock(z, b, ctx.act), (z, bias), needs, dy)
        else:
            dz, db = _gated(dy, mask, ctx.bias_dtype)
        return dz if needs[0] else None, db if needs[1] else None, None


def _stock(z: Tensor, bias: Tensor | None, act: str) -> Tensor:
    wide = z.float()
    if bias is not None:
        # z holds the bias, but not its history: nothing is added here but that.
        wide = wide + (bias - bias.detach()).float()
    return F.gelu(wide, approximate="none" if act == "gelu" else "tanh").to(z.dtype)


def _gated(dy: Tensor, mask: Tensor, bias_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    bits = (mask[..., None] >> torch.arange(32, device=mask.device)) & 1
    # Not a product: a gradient that is not finite stops at a closed gate, as in torch.
    dz = torch.where(bits.flatten(-2)[..., : dy.shape[-1]].bool(), dy, 0)
    return dz, dz.float().reshape(matrix(dz, dz.shape[-1])).sum(0).to(bias_dtype)


def bias_activation(z: Tensor, bias: Tensor | None, act: str) -> Tensor:
    """Take the activation of a product and its bias, with the bias's gradient in one pass.

    Args:
        z: What a matrix product gave, **bias included but detached**, any strides; N columns.
        bias: The bias in z, N elements of any floating dtype. Only its gradient is formed here,
            summed in float32 and rounded once.
        act: One of ``ACTIVATIONS``.

    Returns:
        ``act(z)``, contiguous, in the dtype of z.

    Raises:
        ValueError: If the bias does not fit or the activation is unknown.
    """
    if act not in ACTIVATIONS:
        raise ValueError(f"bias_activation: one of {ACTIVATIONS}; got {act!r}.")
    if z.dim() == 0 or (bias is not None and bias.shape != z.shape[-1:]):
        raise ValueError(
            f"bias_activation: bias has the last dimension of z, {tuple(z.shape)}; "
            f"got {None if bias is None else tuple(bias.shape)}."
        )
    apply: Callable[..., Tensor] = _BiasActivation.apply
    return apply(z, bias, act)
