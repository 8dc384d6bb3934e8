"""What the interpreter is taught: a GPU's rounding, and to keep account of every access to memory.

Each launch is checked for accesses outside its tensors, for an address that is
stored twice, for tensors that are both read and written, and for atomics.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter as engine


class MemoryFaultError(AssertionError):
    """A kernel touched memory that is not its own to touch."""


class Span(NamedTuple):
    """The addresses of a tensor argument."""

    start: int
    end: int


class Ledger:
    """Accounts of every launch since it was made: bytes by kernel, faults at once."""

    def __init__(self) -> None:
        self.loaded: Counter[str] = Counter()
        self.stored: Counter[str] = Counter()
        self._kernel = ""
        self._spans: list[Span] = []
        self._read: set[Span] = set()
        self._written: dict[Span, list[Any]] = {}

    @property
    def bytes(self) -> int:
        return self.loaded.total() + self.stored.total()

    def open(self, kernel: str, arguments: list[object]) -> None:
        self._kernel = kernel
        self._spans = [span_of(x) for x in arguments if isinstance(x, torch.Tensor) and x.numel()]
        self._read, self._written = set(), {}

    def load(self, addresses: Any, size: int) -> None:
        if addresses.size:
            self.loaded[self._kernel] += addresses.size * size
            self._read.add(self._owner(addresses, size))

    def store(self, addresses: Any, size: int) -> None:
        if addresses.size:
            self.stored[self._kernel] += addresses.size * size
            owner = self._owner(addresses, size)
            self._written.setdefault(owner, []).append(addresses)

    def close(self) -> None:
        if self._read & self._written.keys():
            raise MemoryFaultError(f"{self._kernel}: a tensor is both read and written")
        for writes in self._written.values():
            self._check_conflicts(writes)

    def _check_conflicts(self, writes: list[Any]) -> None:
        ordered = np.sort(np.concatenate(writes))
        if (ordered[1:] == ordered[:-1]).any():
            raise MemoryFaultError(f"{self._kernel}: write conflict, one address stored twice")

    def _owner(self, addresses: Any, size: int) -> Span:
        first, last = int(addresses.min()), int(addresses.max()) + size
        for span in self._spans:
            if span.start <= first and last <= span.end:
                return span
        raise MemoryFaultError(f"{self._kernel}: out of bounds, [{first}, {last}) is in no tensor")


def span_of(x: torch.Tensor) -> Span:
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return Span(x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size())


def to_bfloat16(data: Any) -> Any:
    """Round float32 to nearest even, as a GPU does; the interpreter truncates."""
    bits = np.ascontiguousarray(data, dtype=np.float32).view(np.uint32)
    nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(data), quiet, nearest).astype(np.uint16)


def from_bfloat16(data: Any) -> Any:
    return (np.ascontiguousarray(data).astype(np.uint32) << 16).view(np.float32)


def _teach_rounding(patch: pytest.MonkeyPatch) -> None:
    builder = engine.InterpreterBuilder
    cast, convert = builder.cast_impl, builder.create_fp_to_fp

    def rounded(src: Any, dst_type: Any, otherwise: Callable[[], Any]) -> Any:
        pair = (src.dtype.scalar, dst_type.scalar)
        if pair == (tl.float32, tl.bfloat16):
            return engine.TensorHandle(to_bfloat16(src.data), tl.bfloat16)
        if pair == (tl.bfloat16, tl.float32):
            return engine.TensorHandle(from_bfloat16(src.data), tl.float32)
        return otherwise()

    def taught_cast(self: Any, src: Any, dst_type: Any) -> Any:
        return rounded(src, dst_type, lambda: cast(self, src, dst_type))

    def taught_convert(self: Any, src: Any, dst_type: Any, mode: Any) -> Any:
        return rounded(src, dst_type, lambda: convert(self, src, dst_type, mode))

    patch.setattr(builder, "cast_impl", taught_cast)
    patch.setattr(builder, "create_fp_to_fp", taught_convert)


def _keep_account(patch: pytest.MonkeyPatch, ledger: Ledger) -> None:
    builder, run = engine.InterpreterBuilder, engine.GridExecutor.__call__
    load, store = builder.create_masked_load, builder.create_masked_store

    def counted_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        ledger.load(pointers.data[mask.data], pointers.get_element_ty().primitive_bitwidth // 8)
        return load(self, pointers, mask, *rest)

    def counted_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        ledger.store(pointers.data[mask.data], pointers.get_element_ty().primitive_bitwidth // 8)
        return store(self, pointers, value, mask, *rest)

    def refused(*_: Any) -> Any:
        raise MemoryFaultError("an atomic: its sums come in the order of arrival")

    def counted_run(self: Any, *args: Any, **constants: Any) -> None:
        ledger.open(self.fn.__name__, [*args, *constants.values()])
        run(self, *args, **constants)
        ledger.close()

    patch.setattr(builder, "create_masked_load", counted_load)
    patch.setattr(builder, "create_masked_store", counted_store)
    patch.setattr(builder, "create_atomic_rmw", refused)
    patch.setattr(engine.GridExecutor, "__call__", counted_run)


@pytest.fixture(autouse=True)
def ledger() -> Iterator[Ledger]:
    """Interpret as a GPU would and keep account, in every test of this leg."""
    with pytest.MonkeyPatch.context() as patch:
        kept = Ledger()
        _teach_rounding(patch)
        _keep_account(patch, kept)
        yield kept


@pytest.fixture(autouse=True)
def _wide_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreting costs by the operation, not by the element."""
    monkeypatch.setattr("gradwatch.kernels.column_sums._BLOCK", 1024)
