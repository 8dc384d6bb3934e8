"""The machine code of dropout, with and without what is added, for dtypes and shapes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from gradwatch.kernels.dropout import dropout

Compiled = Callable[[Callable[[], object], int], list[Any]]
FP32, BF16 = torch.float32, torch.bfloat16


class Case(NamedTuple):
    """Columns, dtype of the activation (the bias is float32), and whether anything is added."""

    n: int
    dtype: torch.dtype
    adds: bool = True
    rows: int = 64
    p: float = 0.1


def both_passes(case: Case) -> None:
    x = torch.zeros(case.rows, case.n, dtype=case.dtype, requires_grad=True)
    bias = torch.zeros(case.n, requires_grad=True) if case.adds else None
    residual = torch.zeros_like(x) if case.adds else None
    y = dropout(x, case.p, bias, residual=residual, seed=torch.tensor([1]))
    y.backward(torch.zeros_like(y))


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("case", [Case(4096, BF16), Case(4096, FP32, adds=False)], ids=str)
def test_aligned_rows_fit_in_registers_and_move_in_full_vectors(
    case: Case, architecture: int, compiled: Compiled
) -> None:
    binaries = compiled(lambda: both_passes(case), architecture)
    assert [b.kernel for b in binaries] == ["_dropout"] * 2 + ["_column_sums"] * case.adds
    for binary in binaries:
        assert (binary.stack_bytes, binary.doubles) == (0, [])
        assert binary.warps * binary.programs_per_sm >= 16
    for binary in binaries[:2]:
        assert (binary.widest_load, binary.widest_store) == (128, 128)


def test_odd_rows_compile_without_spills(compiled: Compiled) -> None:
    binaries = compiled(lambda: both_passes(Case(333, BF16)), 90)
    assert all((b.stack_bytes, b.doubles) == (0, []) for b in binaries)


def test_another_number_of_rows_or_p_compiles_nothing_new(compiled: Compiled) -> None:
    one = compiled(lambda: both_passes(Case(4096, BF16, rows=1)), 90)
    other = compiled(lambda: both_passes(Case(4096, BF16, rows=7777, p=0.5)), 90)
    assert [b.key for b in one] == [b.key for b in other]
