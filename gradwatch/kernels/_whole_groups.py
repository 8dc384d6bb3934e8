"""Kernels of GroupNorm for groups that fit into a program: one pass forward, one backward.

Formulas stand in `group_norm`, which launches these where a group, padded, has at most
``MAX_NORM_ELEMENTS`` elements. A tile holds one group, its channels along one axis and its places
along the other, the denser one last: LINES x PLACES if contiguous, PLACES x LINES if channels_last
(``LAST``, for K a multiple of 16: with fewer channels side by side loads would be narrow).

Legend: C channels, L space, K channels of a group.
"""

from gradwatch.kernels._triton import jit, tl

__all__ = ["whole_backward", "whole_forward"]


@jit()
def _group(
    C: tl.tensor,
    L: tl.tensor,
    K: tl.tensor,
    LAST: tl.constexpr,
    LINES: tl.constexpr,
    PLACES: tl.constexpr,
) -> tl.tensor:
    """Return group, lines with which there are, offsets of the tile with which are elements."""
    group = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, LINES)
    place = tl.arange(0, PLACES)
    if LAST:
        k = k[None, :]
        place = place[:, None]
        line = group * K + k
        at = line + ((group // (C // K)) * (L - 1) + place) * C
    else:
        k = k[:, None]
        place = place[None, :]
        line = group * K + k
        at = line * L + place
    return group, line, k < K, at, (k < K) & (place < L)


@jit()
def whole_forward(
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    b_ptr: tl.tensor,
    y_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    K: tl.tensor,
    eps: tl.tensor,
    SILU: tl.constexpr,
    LAST: tl.constexpr,
    LINES: tl.constexpr,
    PLACES: tl.constexpr,
) -> None:
    """Normalise, scale, shift, and apply SiLU."""
    group, line, there, at, live = _group(C, L, K, LAST, LINES, PLACES)
    size = (L * K).to(tl.float32)
    x = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32)
    mean = tl.sum(x) / size
    x = tl.where(live, x - mean, 0.0)
    # The sum was rounded at the size of the mean: the distances know its last digits.
    rest = tl.sum(x) / size
    x = tl.where(live, x - rest, 0.0)
    # Python floats are float32 from eager code and float64 from Inductor's.
    rstd = 1.0 / tl.sqrt(tl.sum(x * x) / size + tl.cast(eps, tl.float32))
    tl.store(mean_ptr + group, mean + rest)
    tl.store(rstd_ptr + group, rstd)
    y = x * rstd
    if w_ptr is not None:
        y *= tl.load(w_ptr + line % C, mask=there, other=0.0).to(tl.float32)
    if b_ptr is not None:
        y += tl.load(b_ptr + line % C, mask=there, other=0.0).to(tl.float32)
    if SILU:
        y = y / (1.0 + tl.exp(-y))
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=live)


@jit()
def whole_backward(
    dy_ptr: tl.tensor,
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    b_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    sum_g_ptr: tl.tensor,
    sum_gh_ptr: tl.tensor,
    dx_ptr: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    K: tl.tensor,
    SILU: tl.constexpr,
    LAST: tl.constexpr,
    LINES: tl.constexpr,
    PLACES: tl.constexpr,
) -> None:
    """Compute dx, and leave the sums of every line."""
    group, line, there, at, live = _group(C, L, K, LAST, LINES, PLACES)
    w = 1.0
    b = 0.0
    if w_ptr is not None:
        w = tl.load(w_ptr + line % C, mask=there, other=0.0).to(tl.float32)
    if b_ptr is not None:
        b = tl.load(b_ptr + line % C, mask=there, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + group)
    x = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32)
    g = tl.load(dy_ptr + at, mask=live, other=0.0).to(tl.float32)
    h = (x - tl.load(mean_ptr + group)) * rstd
    if SILU:
        z = h * w + b
        s = 1.0 / (1.0 + tl.exp(-z))
        g *= s * (1.0 + z * (1.0 - s))
    if sum_g_ptr is not None:
        axis: tl.constexpr = 0 if LAST else 1
        tl.store(sum_g_ptr + line, tl.expand_dims(tl.sum(g, axis), axis), mask=there)
        tl.store(sum_gh_ptr + line, tl.expand_dims(tl.sum(g * h, axis), axis), mask=there)
    if dx_ptr is not None:
        g *= w
        size = (L * K).to(tl.float32)
        dx = (g - tl.sum(g) / size - h * (tl.sum(g * h) / size)) * rstd
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=live)
