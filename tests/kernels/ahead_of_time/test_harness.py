"""The harness sees what it must: one planted fault of each kind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwatch.kernels._triton import jit, tl

Compiled = Callable[[Callable[[], object], int], list[Any]]


@jit()
def scale(
    x_ptr: tl.tensor, y_ptr: tl.tensor, n: tl.tensor, factor: tl.tensor, BLOCK: tl.constexpr
) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


@jit()
def gather(x_ptr: tl.tensor, y_ptr: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at * stride))


@jit()
def hoard(x_ptr: tl.tensor, y_ptr: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.store(y_ptr + at, x / tl.sum(x, 0))


def one(binaries: list[Any]) -> Any:
    (binary,) = binaries
    return binary


@pytest.mark.parametrize("architecture", [80, 90])
def test_a_clean_kernel_passes(compiled: Compiled, architecture: int) -> None:
    x = torch.empty(4096)
    binary = one(compiled(lambda: scale[(4,)](x, x, 4096, 2.0, BLOCK=1024), architecture))
    assert (binary.stack_bytes, binary.doubles) == (0, [])
    assert (binary.widest_load, binary.widest_store) == (128, 128)
    assert binary.programs_per_sm >= 4


def test_a_spill_is_seen(compiled: Compiled) -> None:
    x = torch.empty(65536)
    assert one(compiled(lambda: hoard[(1,)](x, x, BLOCK=65536, num_warps=4), 80)).stack_bytes > 0


def test_narrow_loads_are_seen(compiled: Compiled) -> None:
    x = torch.empty(4096)
    binary = one(compiled(lambda: gather[(1,)](x, x, 3, BLOCK=1024), 90))
    assert (binary.widest_load, binary.widest_store) == (32, 128)


def test_a_misaligned_tensor_is_seen(compiled: Compiled) -> None:
    x = torch.empty(4097)[1:]
    assert one(compiled(lambda: scale[(4,)](x, x, 4096, 2.0, BLOCK=1024), 90)).widest_load == 32


def test_arithmetic_in_doubles_is_seen(compiled: Compiled) -> None:
    x = torch.empty(4096, dtype=torch.float64)
    assert one(compiled(lambda: scale[(4,)](x, x, 4096, 2.0, BLOCK=1024), 90)).doubles
