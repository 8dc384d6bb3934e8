"""Gated units: SwiGLU and GeGLU, of two tensors or of the halves of one.

Forward::

    y = act(g) * u      act: silu, gelu (erf) or gelu_tanh

Backward, with ``s = sigmoid(g)`` for silu and its kin for the others::

    dg = dy * u * act'(g)       du = dy * act(g)

The activation is computed again in the backward, so g and u are all that is saved: 3 passes over
the activation forward and 5 backward. The stock way keeps act(g) as well and takes 5 and 9; with
the halves of one tensor 13, for it writes each gradient twice.

Layout: rows whose elements lie side by side, a stride from row to row: so the halves of a packed
tensor are read, and their gradients written, where they lie. A tile of ROWS x BLOCK is a program.

Legend: M rows, N columns (of one half, if packed).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.kernels._bands import as_rows, matrix, tile
from gradwatch.kernels._library import differentiable, nothing, register
from gradwatch.kernels._triton import jit, launch, tl
from gradwatch.kernels.activations import activate, differentiate

__all__ = ["ACTIVATIONS", "gated", "gated_packed"]

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


@jit(do_not_specialize=("M",))
def _forward(
    g_ptr: tl.tensor,
    u_ptr: tl.tensor,
    y_ptr: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    g_stride: tl.tensor,
    u_stride: tl.tensor,
    ACT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(N, BLOCK)
    row = ((pid // blocks) * ROWS + tl.arange(0, ROWS))[:, None]
    col = ((pid % blocks) * BLOCK + tl.arange(0, BLOCK))[None, :]
    live = (row < M) & (col < N)
    g = tl.load(g_ptr + row * g_stride + col, mask=live, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + row * u_stride + col, mask=live, other=0.0).to(tl.float32)
    y = activate(g, ACT) * u
    tl.store(y_ptr + row * N + col, y.to(y_ptr.dtype.element_ty), mask=live)


@jit(do_not_specialize=("M",))
def _backward(
    dy_ptr: tl.tensor,
    g_ptr: tl.tensor,
    u_ptr: tl.tensor,
    dg_ptr: tl.tensor,
    du_ptr: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    dy_stride: tl.tensor,
    g_stride: tl.tensor,
    u_stride: tl.tensor,
    out_stride: tl.tensor,
    ACT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(N, BLOCK)
    row = ((pid // blocks) * ROWS + tl.arange(0, ROWS))[:, None]
    col = ((pid % blocks) * BLOCK + tl.arange(0, BLOCK))[None, :]
    live = (row < M) & (col < N)
    out = row * out_stride + col
    dy = tl.load(dy_ptr + row * dy_stride + col, mask=live, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + row * g_stride + col, mask=live, other=0.0).to(tl.float32)
    if dg_ptr is not None:
        u = tl.load(u_ptr + row * u_stride + col, mask=live, other=0.0).to(tl.float32)
        dg = dy * u * differentiate(g, ACT)
        tl.store(dg_ptr + out, dg.to(dg_ptr.dtype.element_ty), mask=live)
    if du_ptr is not None:
        du = dy * activate(g, ACT)
        tl.store(du_ptr + out, du.to(du_ptr.dtype.element_ty), mask=live)


def _programs(m: int, n: int) -> tuple[tuple[int], dict[str, int]]:
    rows, block, warps = tile(n)
    return (-(-m // rows) * -(-n // block),), {"ROWS": rows, "BLOCK": block, "num_warps": warps}


def _launch_forward(g: Tensor, u: Tensor, act: str) -> Tensor:
    y = _fake_forward(g, u, act)
    (m, n), g_MN, u_MN = matrix(g, g.shape[-1]), *(as_rows(t, g.shape[-1]) for t in (g, u))
    grid, sizes = _programs(m, n)
    launch(
        _forward, grid, g_MN, u_MN, y, m, n, g_MN.stride(0), u_MN.stride(0), ACT=act, **sizes
    )  # fmt: skip
    return y


def _fake_forward(g: Tensor, u: Tensor, act: str) -> Tensor:
    return g.new_empty(g.shape)


def _launch_backward(
    dy: Tensor, g: Tensor, u: Tensor, act: str, needs: list[bool]
) -> tuple[Tensor, Tensor]:
    dg, du = _fake_backward(dy, g, u, act, needs)
    _run_backward(dy, g, u, dg if needs[0] else None, du if needs[1] else None, act, g.shape[-1])
    return dg, du


def _fake_backward(
    dy: Tensor, g: Tensor, u: Tensor, act: str, needs: list[bool]
) -> tuple[Tensor, Tensor]:
    dg, du = (
        t.new_empty(t.shape) if need else nothing(t) for t, need in zip((g, u), needs, strict=True)
    )
    return dg, du


def _launch_packed(dy: Tensor, x: Tensor, act: str, gate_first: bool) -> Tensor:
    dx = _fake_packed(dy, x, act, gate_first)
    dg, du = _halves(as_rows(dx, dx.shape[-1]), gate_first)
    _run_backward(dy, *_halves(x, gate_first), dg, du, act, dx.shape[-1])
    return dx


def _fake_packed(dy: Tensor, x: Tensor, act: str, gate_first: bool) -> Tensor:
    return x.new_empty(x.shape)


def _run_backward(
    dy: Tensor, g: Tensor, u: Tensor, dg: Tensor | None, du: Tensor | None, act: str, stride: int
) -> None:
    m, n = matrix(g, g.shape[-1])
    dy_MN, g_MN, u_MN = (as_rows(t, n) for t in (dy, g, u))
    grid, sizes = _programs(m, n)
    launch(
        _backward, grid, dy_MN, g_MN, u_MN, dg, du,
        m, n, dy_MN.stride(0), g_MN.stride(0), u_MN.stride(0), stride, ACT=act, **sizes,
    )  # fmt: skip


_gated_forward = register(
    "gated_forward(Tensor gate, Tensor up, str act) -> Tensor", _launch_forward, _fake_forward
)
_gated_backward = register(
    "gated_backward(Tensor dy, Tensor gate, Tensor up, str act, bool[2] needs) -> (Tensor, Tensor)",
    _launch_backward, _fake_backward,
)  # fmt: skip
_gated_packed_backward = register(
    "gated_packed_backward(Tensor dy, Tensor x, str act, bool gate_first) -> Tensor",
    _launch_packed, _fake_packed,
)  # fmt: skip


def _halves(x: Tensor, gate_first: bool) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, -1)
    return (first, second) if gate_first else (second, first)


class _Gated(torch.autograd.Function):
    """``act(gate) * up``."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, u: Tensor, act: str) -> Any:
        ctx.act = act
        ctx.save_for_backward(g, u)
        return _gated_forward(g, u, act)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy,), (g, u), needs = grads, ctx.saved_tensors, list(ctx.needs_input_grad[:2])
        if torch.is_grad_enabled():
            dg, du = differentiable(lambda g, u: _stock(g, u, ctx.act), (g, u), needs, dy)
        else:
            dg, du = _gated_backward(dy, g, u, ctx.act, needs)
        return dg if needs[0] else None, du if needs[1] else None, None


class _GatedPacked(torch.autograd.Function):
    """The same of the halves of one tensor: its gradient is written in one piece."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, act: str, gate_first: bool) -> Any:
        ctx.act, ctx.gate_first = act, gate_first
        ctx.save_for_backward(x)
        return _gated_forward(*_halves(x, gate_first), act)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy,), (x,) = grads, ctx.saved_tensors
        if torch.is_grad_enabled():
            (dx,) = differentiable(
                lambda x: _stock(*_halves(x, ctx.gate_first), ctx.act), (x,), (True,), dy
            )
        else:
            dx = _gated_packed_backward(dy, x, ctx.act, ctx.gate_first)
        return dx, None, None


def _stock(g: Tensor, u: Tensor, act: str) -> Tensor:
    wide = g.float()
    gate = F.silu(wide) if act == "silu" else F.gelu(wide, approximate=_APPROXIMATE[act])
    return (gate * u.float()).to(g.dtype)


_APPROXIMATE = {"gelu": "none", "gelu_tanh": "tanh"}


def gated(gate: Tensor, up: Tensor, act: str) -> Tensor:
    """Multiply a tensor by the activation of another, forward and backward in one pass each.

    Args:
        gate: What the activation is taken of, any strides.
        up: What it is multiplied by; same shape and dtype.
        act: One of ``ACTIVATIONS``.

    Returns:
        ``act(gate) * up``, contiguous, rounded once.

    Raises:
        ValueError: If the tensors differ in shape or dtype, or the activation is unknown.
    """
    _check(act)
    if (gate.shape, gate.dtype) != (up.shape, up.dtype):
        raise ValueError(
            f"gated: up must be like gate, {tuple(gate.shape)} {gate.dtype}; "
            f"got {tuple(up.shape)} {up.dtype}."
        )
    if gate.dim() == 0:
        return gated(gate[None], up[None], act)[0]
    apply: Callable[..., Tensor] = _Gated.apply
    return apply(gate, up, act)


def gated_packed(x: Tensor, act: str, *, gate_first: bool = True) -> Tensor:
    """Take :func:`gated` of the two halves of the last dimension.

    Args:
        x: Both halves side by side, any strides.
        act: One of ``ACTIVATIONS``.
        gate_first: The gate is the first half (fused Llama projections) or the second (the order
            of ``torch.nn.GLU``).

    Returns:
        ``act(gate) * up`` with half as many columns.

    Raises:
        ValueError: If the last dimension cannot be halved, or the activation is unknown.
    """
    _check(act)
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(f"gated: the last dimension holds two halves; got {tuple(x.shape)}.")
    apply: Callable[..., Tensor] = _GatedPacked.apply
    return apply(x, act, gate_first)


def _check(act: str) -> None:
    if act not in ACTIVATIONS:
        raise ValueError(f"gated: the activation is one of {ACTIVATIONS}; got {act!r}.")
