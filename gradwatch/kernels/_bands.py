"""How element-wise operations cut a matrix into tiles, and tiles into the bands that are summed."""

from typing import NamedTuple

import torch
from torch import Tensor

from gradwatch.kernels._triton import next_power_of_2, resident_programs

__all__ = ["BandPlan", "as_rows", "matrix", "plan_bands", "tile"]

_TILE = 4096
_PER_THREAD = 16
_MAX_BLOCK = 1024


class BandPlan(NamedTuple):
    """Tiles of rows x block, each column of tiles cut into bands that programs walk down.

    Attributes:
        rows: Rows of a tile.
        block: Columns of a tile.
        warps: Warps of a program.
        band: Rows of a program.
        bands: Programs that share a column of tiles, each with a row of partial sums.
        blocks: Columns of tiles.
    """

    rows: int
    block: int
    warps: int
    band: int
    bands: int
    blocks: int


def matrix(x: Tensor, n: int) -> tuple[int, int]:
    """Return rows and columns of a tensor whose last dimension is n; an empty one has no rows."""
    return (x.numel() // n if n else 0), n


def as_rows(x: Tensor, n: int) -> Tensor:
    """View a tensor as rows of n elements that lie side by side; copy it only where they do not.

    Args:
        x: Any strides; its last dimension is n.
        n: Columns.

    Returns:
        Rows by columns, of unit stride along the columns.
    """
    rows = x.reshape(matrix(x, n))
    return rows if rows.stride(1) == 1 else rows.contiguous()


def tile(n: int, per_thread: int = _PER_THREAD) -> tuple[int, int, int]:
    """Return rows, columns and warps of a tile for rows of n elements.

    Args:
        n: Columns.
        per_thread: Elements of a thread. 16 keep two vectors of 128 bits of each tensor in flight,
            also in bfloat16; with 8 a kernel that needs many registers leaves room for another.

    Returns:
        Rows, columns, warps.
    """
    block = min(max(next_power_of_2(n), 32), _MAX_BLOCK)
    rows = max(_TILE * per_thread // (_PER_THREAD * block), 1)
    return rows, block, max(rows * block // (32 * per_thread), 1)


def plan_bands(
    m: int, n: int, device: torch.device, *, step: int = 1, per_thread: int = _PER_THREAD
) -> BandPlan:
    """Plan a kernel that sums over rows.

    Args:
        m: Rows.
        n: Columns.
        device: Where the kernel runs.
        step: Tiles that a program takes at once: its band is a multiple of as many.
        per_thread: Elements of a thread, as in :func:`tile`.

    Returns:
        The plan; it depends on sizes and device alone, and with it the order of the sums.
    """
    rows, block, warps = tile(n, per_thread)
    blocks = -(-n // block)
    steps = -(-m // (rows * step))
    # Tiles of fewer elements need more programs for as many bytes in flight.
    programs = resident_programs(device, warps) * max(_PER_THREAD // (per_thread * step), 1)
    shares = max(programs // max(blocks, 1), 1)
    band = max(-(-steps // shares), 1) * rows * step
    return BandPlan(rows, block, warps, band, -(-m // band), blocks)
