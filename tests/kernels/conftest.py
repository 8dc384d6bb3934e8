"""Kernels are tested in three legs, each in a process of its own; `test_*_alone.py` start them.

One process cannot both interpret kernels and compile them ahead of time, and Triton reads
`TRITON_INTERPRET` when a kernel is decorated.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

LEGS = ("interpreter", "ahead_of_time", "torch_leg")
LEG = os.environ.get("GRADWATCH_KERNEL_LEG")

collect_ignore = [leg for leg in LEGS if leg != LEG]


def relative_error(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm().clamp_min(1e-30))


def _no_worse_than_stock(got: Tensor, stock: Tensor, exact: Tensor) -> None:
    """Error against float64 at most twice the stock operation's own.

    Of one number the stock operation may hit every bit, of many not: a lone number is allowed its
    last bit, many a sixteenth of it.
    """
    assert got.shape == exact.shape
    chance = torch.finfo(got.dtype).eps / min(max(got.numel(), 1), 16)
    allowed = 2 * relative_error(stock, exact) + chance
    assert relative_error(got, exact) <= allowed


def _rounded_once(got: Tensor, exact: Tensor) -> None:
    """Nearly every element is the exact one rounded to nearest.

    Truncation is wrong in every second element, yet its error is only twice that of rounding.
    """
    assert (got == exact.to(got.dtype)).double().mean() > 0.98


@pytest.fixture
def no_worse_than_stock() -> Callable[[Tensor, Tensor, Tensor], None]:
    return _no_worse_than_stock


@pytest.fixture
def rounded_once() -> Callable[[Tensor, Tensor], None]:
    return _rounded_once


@pytest.fixture(autouse=True)
def _silent_lanes() -> Iterator[None]:
    """Let dead lanes compute inf * 0 without a warning, as a GPU does."""
    with np.errstate(all="ignore"):
        yield


def _patch_language_once(patch: pytest.MonkeyPatch) -> None:
    """Let the interpreter replace Triton's built-ins once, not at every ``tl.sum``: 5 ms each."""
    import triton.language as tl
    from triton.runtime import interpreter as engine

    replace, done = engine._patch_lang, set[tuple[bool, ...]]()

    def replace_once(fn: Any) -> Any:
        languages = tuple(module in fn.__globals__.values() for module in (tl, tl.core))
        if languages not in done:
            done.add(languages)
            replace(fn)
        return engine._LangPatchScope()

    patch.setattr(engine, "_patch_lang", replace_once)


@pytest.fixture(autouse=True, scope="session")
def _quick_interpreter() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if LEG in ("interpreter", "torch_leg"):
            _patch_language_once(patch)
        yield
