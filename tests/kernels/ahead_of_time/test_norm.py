"""The machine code of LayerNorm and RMSNorm, for each dtype and class of shapes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from gradwatch.kernels.norm import norm

Compiled = Callable[[Callable[[], object], int], list[Any]]
FP32, BF16 = torch.float32, torch.bfloat16


class Case(NamedTuple):
    """Rows, columns, dtypes of input and output, and which norm."""

    n: int
    x: torch.dtype
    y: torch.dtype
    center: bool = True
    rows: int = 64


ALIGNED = [
    Case(1024, FP32, FP32),
    Case(4096, BF16, BF16),
    Case(4096, BF16, FP32, center=False),
    Case(8192, FP32, FP32),
]


def both_passes(case: Case) -> None:
    x = torch.zeros(case.rows, case.n, dtype=case.x, requires_grad=True)
    affine = [torch.zeros(case.n, requires_grad=True) for _ in range(1 + case.center)]
    y = norm(x, case.n, *affine, center=case.center, dtype=case.y)
    y.backward(torch.zeros_like(y))


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("case", ALIGNED, ids=str)
def test_aligned_rows_fit_in_registers_and_move_in_full_vectors(
    case: Case, architecture: int, compiled: Compiled
) -> None:
    binaries = compiled(lambda: both_passes(case), architecture)
    assert [b.kernel for b in binaries] == ["_forward", "_backward"] + ["_column_sums"] * (
        1 + case.center
    )
    for binary in binaries:
        assert binary.stack_bytes == 0
        assert binary.doubles == []
        assert binary.warps * binary.programs_per_sm >= 16
    for binary in binaries[:2]:
        assert (binary.widest_load, binary.widest_store) == (128, 128)


@pytest.mark.parametrize("case", [Case(1000, BF16, FP32), Case(33, FP32, FP32)], ids=str)
def test_odd_rows_compile_without_spills(case: Case, compiled: Compiled) -> None:
    assert all(
        b.stack_bytes == 0 and b.doubles == [] for b in compiled(lambda: both_passes(case), 90)
    )


def test_another_number_of_rows_compiles_nothing_new(compiled: Compiled) -> None:
    one = compiled(lambda: both_passes(Case(96, FP32, FP32, rows=1)), 90)
    other = compiled(lambda: both_passes(Case(96, FP32, FP32, rows=7777)), 90)
    assert [b.key for b in one] == [b.key for b in other]
