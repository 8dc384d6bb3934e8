"""Second stage of every sum over rows: partial sums in, one row out, in a fixed order.

``out[n] = sum over p of partial[p, n]``. Each program of a backward leaves one float32 row of
partial sums; this kernel adds the rows up in the order of their programs. Atomics would add them in
the order of arrival, and the same input would give other bits from run to run.

Layout: partial_PN is row-major; a program takes ``_BLOCK`` columns so that each load is one full
memory transaction, and walks down the rows.

Legend: P partial rows, N columns.
"""

import torch
from torch import Tensor

from gradwatch.kernels._triton import jit, launch, tl

__all__ = ["column_sums"]

_ROWS = 32
_BLOCK = 32


@jit(do_not_specialize=("P",))
def _column_sums(
    partial_ptr: tl.tensor,
    out_ptr: tl.tensor,
    P: tl.tensor,
    N: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for first in range(0, P, ROWS):
        row = first + tl.arange(0, ROWS)
        live = (row < P)[:, None] & (col < N)[None, :]
        at = row.to(tl.int64)[:, None] * N + col[None, :]
        total += tl.load(partial_ptr + at, mask=live, other=0.0)
    tl.store(out_ptr + col, tl.sum(total, 0).to(out_ptr.dtype.element_ty), mask=col < N)


def column_sums(partial_PN: Tensor, dtype: torch.dtype) -> Tensor:
    """Add up the rows of partial sums.

    Args:
        partial_PN: Partial sums, float32, contiguous.
        dtype: Of the result: rounded to once, at the end.

    Returns:
        The N sums.
    """
    p, n = partial_PN.shape
    out = torch.empty(n, dtype=dtype, device=partial_PN.device)
    grid = ((n + _BLOCK - 1) // _BLOCK,)
    launch(_column_sums, grid, partial_PN, out, p, n, ROWS=_ROWS, BLOCK=_BLOCK, num_warps=4)
    return out
