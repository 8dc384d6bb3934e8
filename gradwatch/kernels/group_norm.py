"""Group normalisation with an optional SiLU.

Forward, over the S elements of each group of K channels in a sample::

    h = (x - mean) * rstd       z = h * weight + bias       y = z, or z * sigmoid(z)

Backward, with ``g = dy``, or ``dy * sigmoid(z) * (1 + z * (1 - sigmoid(z)))``::

    dbias = sum over samples of g       dweight = sum over samples of g * h
    dx = rstd * (g * weight - sum(g * weight) / S - h * sum(g * weight * h) / S)

A group that fits into a program is read and written once: 2 passes forward, 3 backward. One of 40
channels on 64 x 64 pixels does not fit: forward reads x, then x again and writes y, 3 passes;
backward reads dy and x, then both again and writes dx, 5 passes. z is computed again, so that SiLU
costs no pass. The stock operation copies a channels_last tensor to
contiguous and its result back, and keeps z for SiLU. Sums are kept by channel and sample: they give
dweight and dbias by a sum over samples, and the group's two by a weighted sum over K channels.

Moments are Welford's, joined by Chan's formula (doi:10.1080/00031305.1983.10483115): sums of
squares would cancel where a mean is large.

Layout and legend: see `_whole_groups` for groups that fit and `_group_norm` for those that do not.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.kernels._channels import dense, memory_format
from gradwatch.kernels._group_norm import backward, coefficients, forward, join, moments
from gradwatch.kernels._library import differentiable, nothing, register
from gradwatch.kernels._triton import launch, next_power_of_2, resident_programs
from gradwatch.kernels._whole_groups import whole_backward, whole_forward
from gradwatch.kernels.column_sums import column_sums
from gradwatch.kernels.limits import MAX_NORM_ELEMENTS

__all__ = ["group_norm"]

_TILE = 2048
_ELEMENTS_PER_WARP = 512
_LEAST_BLOCK = 16
# Wide enough for whole memory transactions, narrow enough for many rows a tile.
_MOST_CHANNELS = 256
_JOINED = 256
# Below, a program has too little to do; above, a group spills registers.
_WHOLE = range(512, MAX_NORM_ELEMENTS + 1)
_SIDE_BY_SIDE = 16


class _Plan(NamedTuple):
    """How programs share an activation: tiles, units of lines, and parts of each line."""

    last: bool
    lines: int
    c: int
    l: int  # noqa: E741 - as in the legend
    rows: int
    block: int
    units: int
    steps: int
    parts: int

    @property
    def grid(self) -> tuple[int]:
        return (self.units * self.parts,)

    @property
    def band(self) -> int:
        """Elements of a line that one part takes."""
        return self.steps * (self.rows if self.last else self.block)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.c, self.l, self.lines, self.units, self.steps

    @property
    def tiles(self) -> dict[str, Any]:
        warps = max(self.rows * self.block // _ELEMENTS_PER_WARP, 1)
        return {"LAST": self.last, "ROWS": self.rows, "BLOCK": self.block, "num_warps": warps}


def _plan(x: Tensor) -> _Plan:
    batch, c, space = x.shape[0], x.shape[1], x.shape[2:].numel()
    last = space > 1 and memory_format(x) != torch.contiguous_format
    widest = min(c, _MOST_CHANNELS) if last else min(space, _TILE)
    block = max(next_power_of_2(widest), _LEAST_BLOCK)
    rows = max(_TILE // block, 1)
    units = batch * -(-c // block) if last else -(-batch * c // rows)
    tiles = -(-space // (rows if last else block))
    programs = resident_programs(x.device, max(rows * block // _ELEMENTS_PER_WARP, 1))
    steps = -(-tiles // max(min(tiles, programs // units), 1))
    return _Plan(last, batch * c, c, space, rows, block, units, steps, -(-tiles // steps))


def _whole(x: Tensor, groups: int) -> dict[str, Any] | None:
    """Plan a tile that holds a group; ``None`` if none does."""
    k, space = x.shape[1] // groups, x.shape[2:].numel()
    last = space > 1 and memory_format(x) != torch.contiguous_format
    lines, places = next_power_of_2(k), max(next_power_of_2(space), _LEAST_BLOCK)
    if lines * places not in _WHOLE or (last and k % _SIDE_BY_SIDE):
        return None
    warps = lines * places // _ELEMENTS_PER_WARP
    return {"LAST": last, "LINES": lines, "PLACES": places, "num_warps": warps}


def _launch_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float, silu: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    y, mean, rstd = _fake_forward(x, weight, bias, groups, eps, silu, dtype)
    x = dense(x, x)
    plan, k = _plan(x), x.shape[1] // groups
    if (whole := _whole(x, groups)) is not None:
        given = x, weight, bias, y, mean, rstd
        launch(whole_forward, (mean.numel(),), *given, plan.c, plan.l, k, eps, SILU=silu, **whole)
        return y, mean, rstd
    means, m2s = (mean.new_empty((plan.parts, plan.lines)) for _ in range(2))
    launch(moments, plan.grid, x, means, m2s, *plan.sizes, **plan.tiles)
    launch(
        join, (mean.numel(),), means, m2s, mean, rstd,
        k, plan.l, plan.lines, plan.parts, plan.band, eps, BLOCK=_JOINED, num_warps=2,
    )  # fmt: skip
    launch(
        forward, plan.grid, x, weight, bias, mean, rstd, y, k, *plan.sizes,
        SILU=silu, **plan.tiles,
    )  # fmt: skip
    return y, mean, rstd


def _fake_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float, silu: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    y = torch.empty_like(x, dtype=dtype, memory_format=memory_format(x))
    mean = x.new_empty(x.shape[0] * groups, dtype=torch.float32)
    return y, mean, torch.empty_like(mean)


def _two_passes(
    given: tuple[Tensor | None, ...], plan: _Plan, k: int, dx: Tensor | None, silu: bool
) -> list[Tensor]:
    """Write dx, if it is wanted, and return the sums of every line."""
    _dy, _x, weight, _bias, mean, rstd = given
    means = [torch.empty_like(t) for t in (mean, rstd) if t is not None]
    sums = [means[0].new_empty((plan.parts, plan.lines)) for _ in range(2)]
    launch(
        backward, plan.grid, *given, None, None, *sums, None, k, *plan.sizes,
        SILU=silu, **plan.tiles,
    )  # fmt: skip
    if dx is not None:
        launch(
            coefficients, (means[0].numel(),), *sums, weight, *means,
            k, plan.c, plan.l, plan.lines, plan.parts, BLOCK=_JOINED, num_warps=2,
        )  # fmt: skip
        launch(
            backward, plan.grid, *given, *means, None, None, dx, k, *plan.sizes,
            SILU=silu, **plan.tiles,
        )  # fmt: skip
    return sums


def _launch_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor,
    rstd: Tensor, groups: int, silu: bool, needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dx, dw, db = _fake_backward(dy, x, weight, bias, mean, rstd, groups, silu, needs)
    dy, x = dense(dy, x), dense(x, x)
    plan, k = _plan(x), x.shape[1] // groups
    given = dy, x, weight, bias, mean, rstd
    if (whole := _whole(x, groups)) is not None:
        sums = [mean.new_empty((1, plan.lines)) for _ in range(2)]
        launch(
            whole_backward, (mean.numel(),), *given, *(sums if any(needs[1:]) else (None, None)),
            dx if needs[0] else None, plan.c, plan.l, k, SILU=silu, **whole,
        )  # fmt: skip
    else:
        sums = _two_passes(given, plan, k, dx if needs[0] else None, silu)
    db, dw = (
        column_sums(partial.view(-1, plan.c), grad.dtype) if need else grad
        for partial, grad, need in zip(sums, (db, dw), (needs[2], needs[1]), strict=True)
    )
    return dx, dw, db


def _fake_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor,
    rstd: Tensor, groups: int, silu: bool, needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dx = torch.empty_like(x, memory_format=memory_format(x)) if needs[0] else nothing(x)
    dw, db = (
        nothing(mean) if p is None or not need else torch.empty_like(p)
        for p, need in zip((weight, bias), needs[1:], strict=True)
    )
    return dx, dw, db


_group_norm_forward = register(
    "group_norm_forward(Tensor x, Tensor? weight, Tensor? bias, int groups, float eps, bool silu, "
    "ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    _launch_forward, _fake_forward,
)  # fmt: skip
_group_norm_backward = register(
    "group_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, "
    "Tensor rstd, int groups, bool silu, bool[3] needs) -> (Tensor, Tensor, Tensor)",
    _launch_backward, _fake_backward,
)  # fmt: skip


class _GroupNorm(torch.autograd.Function):
    """``y`` of ``x``, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float,
        silu: bool, dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        y, mean, rstd = _group_norm_forward(x, weight, bias, groups, eps, silu, dtype)
        ctx.groups, ctx.eps, ctx.silu, ctx.dtype = groups, eps, silu, dtype
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        out: Tensor = y
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        needs = list(ctx.needs_input_grad[:3])
        found = (_differentiable if torch.is_grad_enabled() else _fused)(ctx, needs, grads[0])
        given = (g if need else None for g, need in zip(found, needs, strict=True))
        return *given, None, None, None, None


def _fused(ctx: Any, needs: list[bool], dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, rstd = ctx.saved_tensors
    found: tuple[Tensor, ...] = _group_norm_backward(
        dy, x, weight, bias, mean, rstd, ctx.groups, ctx.silu, needs
    )
    return found


def _differentiable(ctx: Any, needs: list[bool], dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, _, _ = ctx.saved_tensors

    def stock(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        w, b = (None if p is None else p.float() for p in (w, b))
        z = F.group_norm(x.float(), ctx.groups, w, b, ctx.eps)
        return (F.silu(z) if ctx.silu else z).to(ctx.dtype)

    return differentiable(stock, (x, weight, bias), needs, dy)


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    silu: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Normalise each group of channels in each sample, and apply SiLU.

    Args:
        x: Input of shape ``(batch, channels, ...)``, any strides, not empty.
        groups: Groups the channels are split into.
        weight: Scale of each channel, of any floating dtype.
        bias: Shift of each channel, of any floating dtype.
        eps: Added to the variance.
        silu: Whether to apply SiLU.
        dtype: Of the result; that of x by default.

    Returns:
        The result, in the memory format of x.

    Raises:
        ValueError: If the channels do not split into the groups, or there is one value only.
    """
    if groups < 1 or x.shape[1] % groups:
        raise ValueError(f"group_norm: {x.shape[1]} channels do not split into {groups} groups.")
    if x.numel() == groups:
        size = [x.numel() // groups, groups, *x.shape[2:]]
        raise ValueError(  # In the words of torch.nn.functional.group_norm.
            f"Expected more than 1 value per channel when training, got input size {size}"
        )
    weight, bias = (None if p is None else p.contiguous() for p in (weight, bias))
    apply: Callable[..., Tensor] = _GroupNorm.apply
    return apply(x, weight, bias, groups, eps, silu, dtype or x.dtype)
