"""The machine code of SwiGLU and GeGLU, for each dtype and class of shapes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from gradwatch.kernels.gated import gated, gated_packed

Compiled = Callable[[Callable[[], object], int], list[Any]]
FP32, BF16 = torch.float32, torch.bfloat16


class Case(NamedTuple):
    """Columns, dtype, activation, and whether the halves are packed."""

    n: int
    dtype: torch.dtype
    act: str
    packed: bool = False
    rows: int = 8


ALIGNED = [
    Case(4096, BF16, "silu"),
    Case(4096, BF16, "gelu"),
    Case(11008, FP32, "gelu_tanh", packed=True),
]


def both_passes(case: Case) -> None:
    shape = (case.rows, case.n)
    if case.packed:
        x = torch.zeros(case.rows, 2 * case.n, dtype=case.dtype, requires_grad=True)
        y = gated_packed(x, case.act)
    else:
        gate, up = (torch.zeros(shape, dtype=case.dtype, requires_grad=True) for _ in range(2))
        y = gated(gate, up, case.act)
    y.backward(torch.zeros_like(y))


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("case", ALIGNED, ids=str)
def test_aligned_rows_fit_in_registers_and_move_in_full_vectors(
    case: Case, architecture: int, compiled: Compiled
) -> None:
    binaries = compiled(lambda: both_passes(case), architecture)
    assert [b.kernel for b in binaries] == ["_forward", "_backward"]
    for binary in binaries:
        assert (binary.stack_bytes, binary.doubles) == (0, [])
        assert (binary.widest_load, binary.widest_store) == (128, 128)
        assert binary.warps * binary.programs_per_sm >= 16


def test_odd_rows_compile_without_spills(compiled: Compiled) -> None:
    binaries = compiled(lambda: both_passes(Case(333, FP32, "gelu", packed=True)), 90)
    assert all((b.stack_bytes, b.doubles) == (0, []) for b in binaries)


def test_another_number_of_rows_compiles_nothing_new(compiled: Compiled) -> None:
    one = compiled(lambda: both_passes(Case(4096, BF16, "silu", rows=1)), 90)
    other = compiled(lambda: both_passes(Case(4096, BF16, "silu", rows=777)), 90)
    assert [b.key for b in one] == [b.key for b in other]
