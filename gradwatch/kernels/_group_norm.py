"""Kernels of GroupNorm: moments of every channel, their join by group, forward, backward.

Formulas and passes stand in `group_norm`, which launches these. An activation of B x C x L is
walked in tiles of ROWS x BLOCK, BLOCK along the dimension that lies densest in memory:

* ``LAST`` (channels_last): element (b, l, c) at ``(b * L + l) * C + c``. A program takes BLOCK
  channels of one sample; each column of its tile is a line.
* else (contiguous): element (line, l) at ``line * L + l``; each row of a tile is a line.

A line is a channel of a sample, number ``b * C + c``; K lines that follow each other are a group.
Where there are few lines, several programs (parts) share each along L.

Legend: B batch, C channels, L space, K channels of a group, P parts.
"""

from gradwatch.kernels._triton import jit, tl

__all__ = ["backward", "coefficients", "forward", "join", "moments"]


@jit()
def _share(
    L: tl.tensor,
    units: tl.tensor,
    steps: tl.tensor,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return this program's part, unit of lines, first and last place along L, and tiles."""
    pid = tl.program_id(0).to(tl.int64)
    step = ROWS if LAST else BLOCK
    first = (pid // units) * steps * step
    last = tl.minimum(first + steps * step, L)
    return pid // units, pid % units, first, last, tl.cdiv(last - first, step)


@jit()
def _lines(
    unit: tl.tensor,
    C: tl.tensor,
    lines: tl.tensor,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the lines of a program, a row or a column of them, and which of them there are."""
    if LAST:
        blocks = tl.cdiv(C, BLOCK)
        channel = (unit % blocks) * BLOCK + tl.arange(0, BLOCK)[None, :]
        line = (unit // blocks) * C + channel
        there = channel < C
    else:
        line = unit * ROWS + tl.arange(0, ROWS)[:, None]
        there = line < lines
    return line, there


@jit()
def _tile(
    i: tl.tensor,
    unit: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    line: tl.tensor,
    there: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the offsets of tile i and which of them are elements."""
    if LAST:
        place = first + i * ROWS + tl.arange(0, ROWS)[:, None]
        batch = unit // tl.cdiv(C, BLOCK)
        at = line + (batch * (L - 1) + place) * C
    else:
        place = first + i * BLOCK + tl.arange(0, BLOCK)[None, :]
        at = line * L + place
    return at, there & (place < last)


@jit()
def _line_sums(values: tl.tensor, LAST: tl.constexpr) -> tl.tensor:
    return tl.sum(values, 0)[None, :] if LAST else tl.sum(values, 1)[:, None]


@jit()
def _members(
    first: tl.tensor, P: tl.tensor, K: tl.tensor, lines: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """Return part, line and offset of a block of a group's partial results, and which there are."""
    j = first + tl.arange(0, BLOCK)
    line = tl.program_id(0).to(tl.int64) * K + j % K
    return j // K, line, (j // K) * lines + line, j < P * K


@jit(do_not_specialize=("lines", "units", "steps"))
def moments(
    x_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    m2_ptr: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    lines: tl.tensor,
    units: tl.tensor,
    steps: tl.tensor,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Leave mean and sum of squared distances from it, line by line and part by part."""
    part, unit, first, last, tiles = _share(L, units, steps, LAST, ROWS, BLOCK)
    line, there = _lines(unit, C, lines, LAST, ROWS, BLOCK)
    n = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    mean = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    m2 = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for i in range(tiles):
        at, live = _tile(i, unit, first, last, line, there, C, L, LAST, ROWS, BLOCK)
        x = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32)
        n += tl.where(live, 1.0, 0.0)
        delta = tl.where(live, x - mean, 0.0)
        mean += delta / tl.maximum(n, 1.0)
        m2 += delta * (x - mean)
    size = (last - first).to(tl.float32)
    center = _line_sums(n * mean, LAST) / size
    away = mean - center
    spread = _line_sums(m2 + n * away * away, LAST)
    # The sum was rounded at the size of the mean: the distances know its last digits.
    center += _line_sums(n * away, LAST) / size
    tl.store(mean_ptr + part * lines + line, center, mask=there)
    tl.store(m2_ptr + part * lines + line, spread, mask=there)


@jit(do_not_specialize=("lines", "P", "band"))
def join(
    line_mean_ptr: tl.tensor,
    line_m2_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    K: tl.tensor,
    L: tl.tensor,
    lines: tl.tensor,
    P: tl.tensor,
    band: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Join the lines and parts of a group; a program each."""
    size = (tl.cast(L, tl.int64) * K).to(tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, P * K, BLOCK):
        part, _line, at, live = _members(first, P, K, lines, BLOCK)
        n = tl.minimum(band, L - part * band).to(tl.float32)
        total += n * tl.load(line_mean_ptr + at, mask=live, other=0.0)
    mean = tl.sum(total) / size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    rest = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, P * K, BLOCK):
        part, _line, at, live = _members(first, P, K, lines, BLOCK)
        n = tl.minimum(band, L - part * band).to(tl.float32)
        away = tl.load(line_mean_ptr + at, mask=live, other=0.0) - mean
        m2 = tl.load(line_m2_ptr + at, mask=live, other=0.0)
        total += tl.where(live, m2 + n * away * away, 0.0)
        rest += tl.where(live, n * away, 0.0)
    mean += tl.sum(rest) / size
    # Python floats are float32 from eager code and float64 from Inductor's.
    var = tl.sum(total) / size + tl.cast(eps, tl.float32)
    tl.store(mean_ptr + tl.program_id(0), mean)
    tl.store(rstd_ptr + tl.program_id(0), 1.0 / tl.sqrt(var))


@jit()
def _parameters(
    w_ptr: tl.tensor,
    b_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    line: tl.tensor,
    there: tl.tensor,
    C: tl.tensor,
    K: tl.tensor,
) -> tl.tensor:
    mean = tl.load(mean_ptr + line // K, mask=there, other=0.0)
    rstd = tl.load(rstd_ptr + line // K, mask=there, other=0.0)
    w = 1.0
    b = 0.0
    if w_ptr is not None:
        w = tl.load(w_ptr + line % C, mask=there, other=0.0).to(tl.float32)
    if b_ptr is not None:
        b = tl.load(b_ptr + line % C, mask=there, other=0.0).to(tl.float32)
    return w, b, mean, rstd


@jit(do_not_specialize=("lines", "units", "steps"))
def forward(
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    b_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    y_ptr: tl.tensor,
    K: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    lines: tl.tensor,
    units: tl.tensor,
    steps: tl.tensor,
    SILU: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Normalise, scale, shift, and apply SiLU."""
    _part, unit, first, last, tiles = _share(L, units, steps, LAST, ROWS, BLOCK)
    line, there = _lines(unit, C, lines, LAST, ROWS, BLOCK)
    w, b, mean, rstd = _parameters(w_ptr, b_ptr, mean_ptr, rstd_ptr, line, there, C, K)
    for i in range(tiles):
        at, live = _tile(i, unit, first, last, line, there, C, L, LAST, ROWS, BLOCK)
        x = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * w + b
        if SILU:
            y = y / (1.0 + tl.exp(-y))
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=live)


@jit(do_not_specialize=("lines", "P"))
def coefficients(
    sum_g_ptr: tl.tensor,
    sum_gh_ptr: tl.tensor,
    w_ptr: tl.tensor,
    mean_g_ptr: tl.tensor,
    mean_gh_ptr: tl.tensor,
    K: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    lines: tl.tensor,
    P: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Take the means of ``g * weight`` and of ``g * weight * h`` over a group; a program each."""
    size = (tl.cast(L, tl.int64) * K).to(tl.float32)
    total_g = tl.zeros((BLOCK,), dtype=tl.float32)
    total_gh = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, P * K, BLOCK):
        _part, line, at, live = _members(first, P, K, lines, BLOCK)
        w = 1.0
        if w_ptr is not None:
            w = tl.load(w_ptr + line % C, mask=live, other=0.0).to(tl.float32)
        total_g += w * tl.load(sum_g_ptr + at, mask=live, other=0.0)
        total_gh += w * tl.load(sum_gh_ptr + at, mask=live, other=0.0)
    tl.store(mean_g_ptr + tl.program_id(0), tl.sum(total_g) / size)
    tl.store(mean_gh_ptr + tl.program_id(0), tl.sum(total_gh) / size)


@jit(do_not_specialize=("lines", "units", "steps"))
def backward(
    dy_ptr: tl.tensor,
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    b_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    mean_g_ptr: tl.tensor,
    mean_gh_ptr: tl.tensor,
    sum_g_ptr: tl.tensor,
    sum_gh_ptr: tl.tensor,
    dx_ptr: tl.tensor,
    K: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    lines: tl.tensor,
    units: tl.tensor,
    steps: tl.tensor,
    SILU: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Leave sums of every line, or use the means of every group for dx."""
    part, unit, first, last, tiles = _share(L, units, steps, LAST, ROWS, BLOCK)
    line, there = _lines(unit, C, lines, LAST, ROWS, BLOCK)
    w, b, mean, rstd = _parameters(w_ptr, b_ptr, mean_ptr, rstd_ptr, line, there, C, K)
    if dx_ptr is not None:
        mean_g = tl.load(mean_g_ptr + line // K, mask=there, other=0.0)
        mean_gh = tl.load(mean_gh_ptr + line // K, mask=there, other=0.0)
    else:
        total_g = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        total_gh = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for i in range(tiles):
        at, live = _tile(i, unit, first, last, line, there, C, L, LAST, ROWS, BLOCK)
        x = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32)
        g = tl.load(dy_ptr + at, mask=live, other=0.0).to(tl.float32)
        h = (x - mean) * rstd
        if SILU:
            z = h * w + b
            s = 1.0 / (1.0 + tl.exp(-z))
            g *= s * (1.0 + z * (1.0 - s))
        if dx_ptr is not None:
            dx = (g * w - mean_g - h * mean_gh) * rstd
            tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=live)
        else:
            total_g += g
            total_gh += g * h
    if dx_ptr is None:
        tl.store(sum_g_ptr + part * lines + line, _line_sums(total_g, LAST), mask=there)
        tl.store(sum_gh_ptr + part * lines + line, _line_sums(total_gh, LAST), mask=there)
