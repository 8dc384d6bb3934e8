"""The harness sees what it must: one planted fault of each kind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.errors import InterpreterError

from gradwatch.kernels._triton import jit, tl

Check = Callable[[Tensor, Tensor], None]


@jit()
def copy(
    x_ptr: tl.tensor, y_ptr: tl.tensor, n: tl.tensor, STEP: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    at = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n).to(tl.float32), mask=at < n)


@jit()
def accumulate(x_ptr: tl.tensor, y_ptr: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    tl.atomic_add(y_ptr + at, tl.load(x_ptr + at))


@jit()
def narrow(x_ptr: tl.tensor, y_ptr: tl.tensor, BLOCK: tl.constexpr, TRUNCATE: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if TRUNCATE:
        x = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    tl.store(y_ptr + at, x.to(tl.bfloat16))


def test_a_clean_kernel_passes_and_its_bytes_are_counted(ledger: Any) -> None:
    x, y = torch.randn(100), torch.empty(100)
    copy[(2,)](x, y, 100, STEP=64, BLOCK=64)
    assert torch.equal(x, y)
    assert (ledger.loaded["copy"], ledger.stored["copy"]) == (400, 400)


def test_an_access_behind_the_end_of_a_tensor_is_caught() -> None:
    with pytest.raises(InterpreterError, match="copy: out of bounds"):
        copy[(2,)](torch.randn(100), torch.empty(128), 128, STEP=64, BLOCK=64)


def test_two_programs_that_store_to_one_address_are_caught() -> None:
    with pytest.raises(AssertionError, match="copy: write conflict"):
        copy[(2,)](torch.randn(100), torch.empty(100), 100, STEP=32, BLOCK=64)


def test_writing_into_an_input_is_caught() -> None:
    x = torch.randn(64)
    with pytest.raises(AssertionError, match="copy: a tensor is both read and written"):
        copy[(1,)](x, x, 64, STEP=64, BLOCK=64)


def test_an_atomic_is_caught() -> None:
    with pytest.raises(InterpreterError, match="an atomic"):
        accumulate[(1,)](torch.randn(64), torch.zeros(64), BLOCK=64)


def test_a_cast_to_bfloat16_rounds_to_nearest_even(rounded_once: Check) -> None:
    x, y = torch.randn(4096), torch.empty(4096, dtype=torch.bfloat16)
    x[:4] = torch.tensor([1.00390625, 1.01171875, float("inf"), float("nan")])
    narrow[(1,)](x, y, BLOCK=4096, TRUNCATE=False)
    assert torch.equal(y[:3], x[:3].bfloat16())
    assert y[3].isnan()
    rounded_once(y[4:], x[4:].double())


def test_a_truncating_cast_is_caught(rounded_once: Check) -> None:
    x, y = torch.randn(4096), torch.empty(4096, dtype=torch.bfloat16)
    narrow[(1,)](x, y, BLOCK=4096, TRUNCATE=True)
    with pytest.raises(AssertionError):
        rounded_once(y, x.double())


def test_an_error_three_times_the_stock_one_is_caught(
    no_worse_than_stock: Callable[[Tensor, Tensor, Tensor], None],
) -> None:
    exact = torch.randn(1000, dtype=torch.float64)
    stock = exact.float()
    no_worse_than_stock(stock, stock, exact)
    with pytest.raises(AssertionError):
        no_worse_than_stock((exact + 3 * (stock - exact).abs()).float(), stock, exact)
