"""How rows are cut into tiles, and tiles into the bands that programs walk down."""

from typing import NamedTuple

import torch

from gradwatch.kernels._triton import next_power_of_2, resident_programs

__all__ = ["RowPlan", "plan_rows"]

# 16 elements a thread: a backward holds five values of each in registers and does not spill.
_TILE = 2048
_ELEMENTS_PER_WARP = 512


class RowPlan(NamedTuple):
    """A tile of rows x block, the warps that share it, and how programs share the rows.

    Attributes:
        rows: Rows of a tile.
        block: Columns of a tile: a whole row, padded to a power of two.
        warps: Warps of a program.
        band: Rows of a program, a multiple of ``rows``.
        programs: Programs, each with a band; none for an empty batch.
    """

    rows: int
    block: int
    warps: int
    band: int
    programs: int


def plan_rows(m: int, n: int, device: torch.device) -> RowPlan:
    """Plan a kernel whose tiles hold whole rows.

    Args:
        m: Rows.
        n: Columns.
        device: Where the kernel runs.

    Returns:
        The plan; it depends on sizes and device alone, and with it the order of sums over rows.
    """
    block = max(next_power_of_2(n), 16)
    rows = max(_TILE // block, 1)
    warps = max(rows * block // _ELEMENTS_PER_WARP, 1)
    tiles = -(-m // rows)
    band = -(-tiles // resident_programs(device, warps)) * rows
    return RowPlan(rows, block, warps, band, -(-m // band) if m else 0)
