"""How kernels walk an activation channel by channel, in either memory format; and masks of one bit.

An activation of R x C x L is walked in tiles of ROWS x BLOCK, BLOCK along the dimension that lies
densest in memory, so that loads are full vectors:

* ``LAST`` (channels_last, or L = 1): element (r, c) at ``r * C + c``. A program takes BLOCK
  channels and a band of rows; each column of its tile is a channel.
* else (contiguous): element (r, c, l) at ``(r * C + c) * L + l``. A program takes one channel and a
  band of the batch; the whole tile is that channel.

What belongs to a channel is a row of BLOCK in the first case and a scalar in the second: both
broadcast over the tile, so that one kernel serves both.

Legend: R rows (batch x space if LAST, else batch), C channels, L space (1 if LAST).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from gradwatch.kernels._triton import jit, next_power_of_2, resident_programs, tl

__all__ = [
    "Walk",
    "channel_numbers",
    "channel_sums",
    "dense",
    "mask_bytes",
    "memory_format",
    "offsets",
    "pack",
    "share",
    "tile",
    "unpack",
    "unpacked",
    "walk",
]

_TILE = 2048
# Wide enough for whole memory transactions, narrow enough for many rows a tile.
_MOST_CHANNELS = 256
_LEAST_BLOCK = 16
_ELEMENTS_PER_WARP = 512


class Walk(NamedTuple):
    """How the programs of a launch share an activation.

    Attributes:
        last: Whether channels lie densest.
        r: Rows.
        c: Channels.
        l: Elements of a channel in a row.
        rows: Rows of a tile.
        block: Columns of a tile.
        band: Rows of a program.
        parts: Bands.
        columns: Programs that share a band.
        warps: Warps of a program.
    """

    last: bool
    r: int
    c: int
    l: int  # noqa: E741 - as in the legend
    rows: int
    block: int
    band: int
    parts: int
    columns: int
    warps: int

    @property
    def grid(self) -> tuple[int]:
        """Programs of a launch."""
        return (self.parts * self.columns,)


def walk(x: Tensor) -> Walk:
    """Plan the launch for an activation.

    Args:
        x: The activation, channels second, dense in one of the two formats and not empty.

    Returns:
        The plan; it depends on device, shape and format alone.
    """
    last, r, c, space = _sizes(x)
    widest = min(c, _MOST_CHANNELS) if last else min(space, _TILE)
    block = max(next_power_of_2(widest), _LEAST_BLOCK)
    rows = max(_TILE // block, 1)
    warps = max(rows * block // _ELEMENTS_PER_WARP, 1)
    columns = -(-c // block) if last else c
    tiles = -(-r // rows)
    parts = max(min(tiles, resident_programs(x.device, warps) // columns), 1)
    band = -(-tiles // parts) * rows
    return Walk(last, r, c, space, rows, block, band, -(-r // band), columns, warps)


def _sizes(x: Tensor) -> tuple[bool, int, int, int]:
    batch, c, space = x.shape[0], x.shape[1], x.shape[2:].numel()
    last = space == 1 or memory_format(x) != torch.contiguous_format
    return (True, batch * space, c, 1) if last else (False, batch, c, space)


def memory_format(x: Tensor) -> torch.memory_format:
    """Return the memory format in which torch's own layers answer."""
    found: torch.memory_format = suggest_memory_format(x)
    return found


def dense(x: Tensor, like: Tensor) -> Tensor:
    """Return x in the memory format of another tensor; a copy only if it is in another."""
    return x.contiguous(memory_format=memory_format(like))


def mask_bytes(x: Tensor) -> int:
    """Return the bytes of a mask of one bit an element: each line of memory has whole bytes."""
    last, r, c, space = _sizes(x)
    return r * _octets(c) if last else r * c * _octets(space)


def _octets(n: int) -> int:
    return -(-n // 8)


def unpacked(bits: Tensor, x: Tensor) -> Tensor:
    """Return the mask that a kernel packed for x, as truth values, with torch's operations."""
    last, _rows, c, space = _sizes(x)
    width = c if last else space
    octets = bits.view(-1, _octets(width), 1) >> torch.arange(8, device=bits.device)
    flat = (octets & 1).bool().flatten(1)[:, :width].reshape(-1)
    if not last:
        return flat.view(x.shape)
    return flat.view(x.shape[0], *x.shape[2:], c).movedim(-1, 1)


@jit()
def share(
    R: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    band: tl.tensor,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return this program's part, its block of channels, its first and last row, its tiles."""
    pid = tl.program_id(0).to(tl.int64)
    if LAST:
        columns = tl.cdiv(C, BLOCK)
        across = 1
    else:
        columns = C
        across = tl.cdiv(L, BLOCK)
    first = (pid // columns) * band
    last = tl.minimum(first + band, R)
    return pid // columns, pid % columns, first, last, tl.cdiv(last - first, ROWS) * across


@jit()
def channel_numbers(block: tl.tensor, LAST: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """Return the channels of a program: a row of them, or one."""
    return block * BLOCK + tl.arange(0, BLOCK) if LAST else block


@jit()
def tile(
    i: tl.tensor,
    block: tl.tensor,
    first: tl.tensor,
    C: tl.tensor,
    L: tl.tensor,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the rows of tile i, the line each lies on, the first column and a line's width."""
    if LAST:
        row = first + i * ROWS + tl.arange(0, ROWS)
        line = row
        start = block * BLOCK
        width = C
    else:
        across = tl.cdiv(L, BLOCK)
        row = first + (i // across) * ROWS + tl.arange(0, ROWS)
        line = row * C + block
        start = (i % across) * BLOCK
        width = L
    return row, line, start, width


@jit()
def offsets(
    line: tl.tensor, start: tl.tensor, width: tl.tensor, alive: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """Return the offsets of a tile and which of them are elements."""
    column = start + tl.arange(0, BLOCK)
    return line[:, None] * width + column[None, :], alive[:, None] & (column < width)[None, :]


@jit()
def channel_sums(values: tl.tensor, LAST: tl.constexpr) -> tl.tensor:
    """Add up a tile, channel by channel."""
    return tl.sum(values, 0) if LAST else tl.sum(values)


@jit()
def pack(on: tl.tensor, ROWS: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """Pack a tile of truth values into bytes, eight neighbours each."""
    bit = tl.arange(0, 8)[None, None, :]
    octets = tl.reshape(on.to(tl.int32), (ROWS, BLOCK // 8, 8))
    return tl.sum(octets << bit, 2).to(tl.uint8)


@jit()
def unpack(octets: tl.tensor, ROWS: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """Unpack bytes into a tile of truth values."""
    bit = tl.arange(0, 8)[None, None, :]
    spread = (octets.to(tl.int32)[:, :, None] >> bit) & 1
    return tl.reshape(spread, (ROWS, BLOCK)) != 0
