"""Kernels of BatchNorm: moments of a batch and their join, forward, backward.

Formulas and passes stand in `batch_norm`, which launches these; the layout in `_channels`.

Legend: R rows, C channels, L space, M = R * L, P parts.
"""

from gradwatch.kernels._channels import (
    channel_numbers,
    channel_sums,
    offsets,
    pack,
    share,
    tile,
    unpack,
)
from gradwatch.kernels._triton import jit, tl

__all__ = ["backward", "forward", "join", "moments"]


@jit(do_not_specialize=("R", "band"))
def moments(
    x_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    m2_ptr: tl.tensor,
    R: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    band: tl.tensor,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Leave mean and sum of squared distances from it, part by part."""
    part, block, first, last, tiles = share(R, C, L, band, LAST, ROWS, BLOCK)
    channel = channel_numbers(block, LAST, BLOCK)
    n = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    mean = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    m2 = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for i in range(tiles):
        row, line, start, width = tile(i, block, first, C, L, LAST, ROWS, BLOCK)
        at, live = offsets(line, start, width, row < last, BLOCK)
        x = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32)
        n += tl.where(live, 1.0, 0.0)
        delta = tl.where(live, x - mean, 0.0)
        mean += delta / tl.maximum(n, 1.0)
        m2 += delta * (x - mean)
    size = ((last - first) * L).to(tl.float32)
    center = channel_sums(n * mean, LAST) / size
    away = mean - center
    spread = channel_sums(m2 + n * away * away, LAST)
    # The sum was rounded at the size of the mean: the distances know its last digits.
    center += channel_sums(n * away, LAST) / size
    tl.store(mean_ptr + part * C + channel, center, mask=channel < C)
    tl.store(m2_ptr + part * C + channel, spread, mask=channel < C)


@jit(do_not_specialize=("R", "P", "band"))
def join(
    mean_PC_ptr: tl.tensor,
    m2_PC_ptr: tl.tensor,
    old_mean_ptr: tl.tensor,
    old_var_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    new_mean_ptr: tl.tensor,
    new_var_ptr: tl.tensor,
    R: tl.tensor,
    P: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    band: tl.tensor,
    momentum: tl.tensor,
    eps: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Join the parts; update the running statistics into new tensors."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    m = (tl.cast(R, tl.int64) * L).to(tl.float32)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for first in range(0, P, ROWS):
        part = (first + tl.arange(0, ROWS)).to(tl.int64)
        live = (part < P)[:, None] & inside[None, :]
        n = (tl.minimum(band, R - part * band) * L).to(tl.float32)[:, None]
        at = part[:, None] * C + channel[None, :]
        total += n * tl.load(mean_PC_ptr + at, mask=live, other=0.0)
    mean = tl.sum(total, 0) / m
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    rest = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for first in range(0, P, ROWS):
        part = (first + tl.arange(0, ROWS)).to(tl.int64)
        live = (part < P)[:, None] & inside[None, :]
        n = (tl.minimum(band, R - part * band) * L).to(tl.float32)[:, None]
        at = part[:, None] * C + channel[None, :]
        away = tl.load(mean_PC_ptr + at, mask=live, other=0.0) - mean[None, :]
        m2 = tl.load(m2_PC_ptr + at, mask=live, other=0.0)
        total += tl.where(live, m2 + n * away * away, 0.0)
        rest += tl.where(live, n * away, 0.0)
    mean += tl.sum(rest, 0) / m
    m2_C = tl.sum(total, 0)
    # Python floats are float32 from eager code and float64 from Inductor's.
    eps_C = tl.full((BLOCK,), eps, tl.float32)
    new = tl.full((BLOCK,), momentum, tl.float32)
    tl.store(mean_ptr + channel, mean, mask=inside)
    tl.store(rstd_ptr + channel, 1.0 / tl.sqrt(m2_C / m + eps_C), mask=inside)
    if old_mean_ptr is not None:
        old = tl.load(old_mean_ptr + channel, mask=inside, other=0.0).to(tl.float32)
        value = new * mean + (1.0 - new) * old
        tl.store(new_mean_ptr + channel, value.to(new_mean_ptr.dtype.element_ty), mask=inside)
        old = tl.load(old_var_ptr + channel, mask=inside, other=0.0).to(tl.float32)
        value = new * (m2_C / (m - 1.0)) + (1.0 - new) * old
        tl.store(new_var_ptr + channel, value.to(new_var_ptr.dtype.element_ty), mask=inside)


@jit()
def _parameters(
    w_ptr: tl.tensor,
    b_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    channel: tl.tensor,
    C: tl.tensor,
) -> tl.tensor:
    inside = channel < C
    mean = tl.load(mean_ptr + channel, mask=inside, other=0.0)
    rstd = tl.load(rstd_ptr + channel, mask=inside, other=0.0)
    w = 1.0
    b = 0.0
    if w_ptr is not None:
        w = tl.load(w_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    if b_ptr is not None:
        b = tl.load(b_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    return w, b, mean, rstd


@jit(do_not_specialize=("R", "band"))
def forward(
    x_ptr: tl.tensor,
    r_ptr: tl.tensor,
    w_ptr: tl.tensor,
    b_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    y_ptr: tl.tensor,
    bits_ptr: tl.tensor,
    R: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    band: tl.tensor,
    RELU: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Normalise, add the residual, apply ReLU and keep its mask."""
    _part, block, first, last, tiles = share(R, C, L, band, LAST, ROWS, BLOCK)
    channel = channel_numbers(block, LAST, BLOCK)
    w, b, mean, rstd = _parameters(w_ptr, b_ptr, mean_ptr, rstd_ptr, channel, C)
    for i in range(tiles):
        row, line, start, width = tile(i, block, first, C, L, LAST, ROWS, BLOCK)
        at, live = offsets(line, start, width, row < last, BLOCK)
        x = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * w + b
        if r_ptr is not None:
            y += tl.load(r_ptr + at, mask=live, other=0.0).to(tl.float32)
        if RELU:
            # Not y > 0: a NaN must come through, as it does in the stock operation.
            off = y <= 0.0
            y = tl.where(off, 0.0, y)
            if bits_ptr is not None:
                on = pack((off == 0) & live, ROWS, BLOCK)
                at_8, live_8 = offsets(line, start // 8, tl.cdiv(width, 8), row < last, BLOCK // 8)
                tl.store(bits_ptr + at_8, on, mask=live_8)
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=live)


@jit(do_not_specialize=("R", "band"))
def backward(
    dy_ptr: tl.tensor,
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    b_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    bits_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    dr_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    dx_ptr: tl.tensor,
    R: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    band: tl.tensor,
    RELU: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Apply ReLU's mask; leave sums over the batch, or use them for dx."""
    part, block, first, last, tiles = share(R, C, L, band, LAST, ROWS, BLOCK)
    channel = channel_numbers(block, LAST, BLOCK)
    w, b, mean, rstd = _parameters(w_ptr, b_ptr, mean_ptr, rstd_ptr, channel, C)
    if sums_ptr is not None:
        m = (tl.cast(R, tl.int64) * L).to(tl.float32)
        mean_g = tl.load(sums_ptr + channel, mask=channel < C, other=0.0) / m
        mean_gh = tl.load(sums_ptr + C + channel, mask=channel < C, other=0.0) / m
    if partial_ptr is not None:
        total_g = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        total_gh = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for i in range(tiles):
        row, line, start, width = tile(i, block, first, C, L, LAST, ROWS, BLOCK)
        at, live = offsets(line, start, width, row < last, BLOCK)
        x = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32)
        g = tl.load(dy_ptr + at, mask=live, other=0.0).to(tl.float32)
        h = (x - mean) * rstd
        if bits_ptr is not None:
            at_8, live_8 = offsets(line, start // 8, tl.cdiv(width, 8), row < last, BLOCK // 8)
            on = unpack(tl.load(bits_ptr + at_8, mask=live_8, other=0), ROWS, BLOCK)
            g = tl.where(on, g, 0.0)
        elif RELU:
            g = tl.where(h * w + b <= 0.0, 0.0, g)
        if dr_ptr is not None:
            tl.store(dr_ptr + at, g.to(dr_ptr.dtype.element_ty), mask=live)
        if partial_ptr is not None:
            total_g += g
            total_gh += g * h
        if dx_ptr is not None:
            if sums_ptr is not None:
                g -= mean_g + h * mean_gh
            tl.store(dx_ptr + at, (g * (w * rstd)).to(dx_ptr.dtype.element_ty), mask=live)
    if partial_ptr is not None:
        here = partial_ptr + part * 2 * C + channel
        tl.store(here, channel_sums(total_g, LAST), mask=channel < C)
        tl.store(here + C, channel_sums(total_gh, LAST), mask=channel < C)
