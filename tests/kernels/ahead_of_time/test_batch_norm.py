"""The machine code of BatchNorm with residual and ReLU, for each dtype and memory format."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch

from gradwatch.kernels.batch_norm import batch_norm

Compiled = Callable[[Callable[[], object], int], list[Any]]
FP32, BF16 = torch.float32, torch.bfloat16
LAST, FIRST = torch.channels_last, torch.contiguous_format
MOVERS = {"moments", "forward", "backward"}


class Case(NamedTuple):
    """Shape, dtype, memory format, and whether a residual is added."""

    shape: tuple[int, int, int, int]
    x: torch.dtype
    layout: torch.memory_format
    residual: bool = False


ALIGNED = [
    (Case((2, 64, 8, 8), FP32, LAST), 80),
    (Case((2, 256, 8, 8), BF16, LAST, residual=True), 90),
    (Case((2, 4, 56, 56), BF16, FIRST, residual=True), 80),
    (Case((2, 4, 16, 16), FP32, FIRST), 90),
]


def both_passes(case: Case) -> None:
    x, r = (
        torch.zeros(case.shape, dtype=case.x).contiguous(memory_format=case.layout).requires_grad_()
        for _ in range(2)
    )
    mean, var, w, b = (torch.ones(case.shape[1], requires_grad=i > 1) for i in range(4))
    y = batch_norm(
        x, mean, var, w, b, residual=r if case.residual else None, training=True, relu=True
    )
    y.backward(torch.zeros_like(y))


@pytest.mark.parametrize(("case", "architecture"), ALIGNED, ids=str)
def test_aligned_channels_fit_in_registers_and_move_in_full_vectors(
    case: Case, architecture: int, compiled: Compiled
) -> None:
    binaries = compiled(lambda: both_passes(case), architecture)
    expected = ["moments", "join", "forward", "backward", "_column_sums", "backward"]
    assert [b.kernel for b in binaries] == expected
    for binary in binaries:
        assert binary.stack_bytes == 0
        assert binary.doubles == []
        assert binary.warps * binary.programs_per_sm >= 16
    assert all(b.widest_load == 128 for b in binaries if b.kernel in MOVERS)
    writers = [2, 3, 5] if case.residual else [2, 5]
    assert all(binaries[i].widest_store == 128 for i in writers)


def test_odd_channels_compile_without_spills(compiled: Compiled) -> None:
    binaries = compiled(lambda: both_passes(Case((2, 33, 7, 7), BF16, LAST, residual=True)), 90)
    assert all(b.stack_bytes == 0 and b.doubles == [] for b in binaries)


def test_another_batch_compiles_nothing_new(compiled: Compiled) -> None:
    case, architecture = ALIGNED[1]
    one, other = (
        compiled(partial(both_passes, case._replace(shape=(n, 256, 8, 8))), architecture)
        for n in (2, 77)
    )
    assert [b.key for b in one] == [b.key for b in other]
