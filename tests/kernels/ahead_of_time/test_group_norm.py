"""The machine code of GroupNorm and SiLU, for each dtype and memory format."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch

from gradwatch.kernels.group_norm import group_norm

Compiled = Callable[[Callable[[], object], int], list[Any]]
FP32, BF16 = torch.float32, torch.bfloat16
LAST, FIRST = torch.channels_last, torch.contiguous_format
KERNELS = [
    *("moments", "join", "forward"),
    *("backward", "coefficients", "backward", "_column_sums", "_column_sums"),
]
MOVERS, WRITERS = (0, 2, 3, 5), (2, 5)


class Case(NamedTuple):
    """Shape, groups, dtypes of input and output, memory format, and whether SiLU follows."""

    shape: tuple[int, int, int, int]
    groups: int
    x: torch.dtype
    y: torch.dtype
    layout: torch.memory_format
    silu: bool = True


ALIGNED = [
    (Case((2, 64, 8, 8), 32, FP32, FP32, LAST, silu=False), 80),
    (Case((2, 320, 8, 8), 32, BF16, FP32, LAST), 90),
    (Case((2, 64, 64, 64), 32, BF16, BF16, FIRST), 80),
]


def both_passes(case: Case) -> None:
    x = torch.zeros(case.shape, dtype=case.x).contiguous(memory_format=case.layout)
    inputs = [x, torch.ones(case.shape[1]), torch.ones(case.shape[1])]
    x, w, b = (t.requires_grad_() for t in inputs)
    y = group_norm(x, case.groups, w, b, silu=case.silu, dtype=case.y)
    y.backward(torch.zeros_like(y))


@pytest.mark.parametrize(("case", "architecture"), ALIGNED, ids=str)
def test_aligned_channels_fit_in_registers_and_move_in_full_vectors(
    case: Case, architecture: int, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwatch.kernels.group_norm._WHOLE", ())
    binaries = compiled(lambda: both_passes(case), architecture)
    assert [b.kernel for b in binaries] == KERNELS
    for binary in binaries:
        assert binary.stack_bytes == 0
        assert binary.doubles == []
        assert binary.warps * binary.programs_per_sm >= 16
    assert [binaries[i].widest_load for i in MOVERS] == [128] * len(MOVERS)
    assert [binaries[i].widest_store for i in WRITERS] == [128] * len(WRITERS)


WHOLE = [
    (Case((2, 64, 16, 16), 2, FP32, FP32, LAST), 80),
    (Case((2, 64, 32, 32), 8, BF16, FP32, FIRST), 90),
]


@pytest.mark.parametrize(("case", "architecture"), WHOLE, ids=str)
def test_groups_in_one_program_fit_in_registers_and_move_in_full_vectors(
    case: Case, architecture: int, compiled: Compiled
) -> None:
    binaries = compiled(lambda: both_passes(case), architecture)
    assert [b.kernel for b in binaries[:2]] == ["whole_forward", "whole_backward"]
    for binary in binaries[:2]:
        assert (binary.stack_bytes, binary.doubles) == (0, [])
        assert (binary.widest_load, binary.widest_store) == (128, 128)
        assert binary.warps * binary.programs_per_sm >= 16


def test_odd_channels_compile_without_spills(compiled: Compiled) -> None:
    case = Case((2, 33, 7, 7), 11, BF16, FP32, LAST)
    binaries = compiled(lambda: both_passes(case), 90)
    assert all(b.stack_bytes == 0 and b.doubles == [] for b in binaries)


def test_another_batch_compiles_nothing_new(compiled: Compiled) -> None:
    case, architecture = ALIGNED[1]
    one, other = (
        compiled(partial(both_passes, case._replace(shape=(n, 320, 8, 8))), architecture)
        for n in (2, 77)
    )
    assert [b.key for b in one] == [b.key for b in other]
