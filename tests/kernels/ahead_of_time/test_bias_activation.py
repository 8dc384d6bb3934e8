"""The machine code of a Linear's activation and its bias's gradient, for dtypes and shapes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from gradwatch.kernels.bias_activation import bias_activation

Compiled = Callable[[Callable[[], object], int], list[Any]]
FP32, BF16 = torch.float32, torch.bfloat16


class Case(NamedTuple):
    """Columns, dtype of the activation (the bias is float32), and which activation."""

    n: int
    dtype: torch.dtype
    act: str
    rows: int = 64


ALIGNED = [Case(4096, BF16, "relu"), Case(4096, BF16, "gelu"), Case(4096, FP32, "gelu_tanh")]


def both_passes(case: Case) -> None:
    z = torch.zeros(case.rows, case.n, dtype=case.dtype, requires_grad=True)
    y = bias_activation(z, torch.zeros(case.n, requires_grad=True), case.act)
    y.backward(torch.zeros_like(y))


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("case", ALIGNED, ids=str)
def test_aligned_rows_fit_in_registers_and_move_in_full_vectors(
    case: Case, architecture: int, compiled: Compiled
) -> None:
    binaries = compiled(lambda: both_passes(case), architecture)
    assert [b.kernel for b in binaries] == ["_forward", "_backward", "_column_sums"]
    for binary in binaries:
        assert (binary.stack_bytes, binary.doubles) == (0, [])
        assert binary.warps * binary.programs_per_sm >= 32
    for binary in binaries[:2]:
        assert (binary.widest_load, binary.widest_store) == (128, 128)


def test_odd_rows_compile_without_spills(compiled: Compiled) -> None:
    binaries = compiled(lambda: both_passes(Case(333, BF16, "gelu")), 90)
    assert all((b.stack_bytes, b.doubles) == (0, []) for b in binaries)


def test_another_number_of_rows_compiles_nothing_new(compiled: Compiled) -> None:
    one = compiled(lambda: both_passes(Case(4096, BF16, "relu", rows=1)), 90)
    other = compiled(lambda: both_passes(Case(4096, BF16, "relu", rows=7777)), 90)
    assert [b.key for b in one] == [b.key for b in other]
