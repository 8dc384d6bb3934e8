"""The machine code of softmax cross-entropy, for each dtype and class of shapes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from gradwatch.fused import cross_entropy

Compiled = Callable[[Callable[[], object], int], list[Any]]
FP32, BF16 = torch.float32, torch.bfloat16


class Case(NamedTuple):
    """Classes, dtype of the logits, and options."""

    classes: int
    x: torch.dtype
    weighted: bool = False
    label_smoothing: float = 0.0


def both_passes(case: Case) -> None:
    x = torch.zeros(2, case.classes, dtype=case.x, requires_grad=True)
    weight = torch.zeros(case.classes) if case.weighted else None
    target = torch.zeros(2, dtype=torch.int64)
    loss = cross_entropy(x, target, weight, label_smoothing=case.label_smoothing, dtype=FP32)
    loss.backward()


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize(
    "case",
    [
        Case(128_256, BF16),
        Case(32_000, FP32),
        Case(32_000, BF16, weighted=True, label_smoothing=0.1),
    ],
    ids=str,
)
def test_aligned_rows_fit_in_registers_and_move_in_full_vectors(
    case: Case, architecture: int, compiled: Compiled
) -> None:
    binaries = compiled(lambda: both_passes(case), architecture)
    assert [b.kernel for b in binaries] == ["_forward", "_backward"]
    for binary in binaries:
        assert (binary.stack_bytes, binary.doubles) == (0, [])
        assert binary.widest_load == 128
        assert binary.warps * binary.programs_per_sm >= 32
    assert binaries[1].widest_store == 128


def test_an_odd_vocabulary_compiles_without_spills(compiled: Compiled) -> None:
    binaries = compiled(lambda: both_passes(Case(50_257, BF16)), 90)
    assert all((b.stack_bytes, b.doubles) == (0, []) for b in binaries)
