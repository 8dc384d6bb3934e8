"""Finite or not, of many tensors, kept on their devices until asked for once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from enum import IntEnum

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

CLEAN = 0
NARROW = 2


class Value(IntEnum):
    """The worst value a tensor holds; the order is that of harm."""

    FINITE = 0
    MINUS_INF = 1
    INF = 2
    NAN = 3

    @property
    def is_inf(self) -> bool:
        """True for an infinity of either sign."""
        return self in {Value.MINUS_INF, Value.INF}

    @property
    def word(self) -> str:
        """What a person calls it."""
        return {Value.NAN: "NaN", Value.INF: "Inf", Value.MINUS_INF: "Inf"}.get(self, "")


class Flags:
    """A pool of flags; the number of one is its handle, 0 stands for "surely finite"."""

    def __init__(self) -> None:
        """Start with the one flag that is always clean."""
        self._extremes: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        self._places: list[tuple[tuple[torch.device, torch.dtype], int] | None] = [None]

    def add(self, tensor: Tensor) -> int:
        """Measure a dense tensor on its device, without waiting for it.

        Args:
            tensor: A part handed out by `dense_parts`.

        Returns:
            The handle to look the flag up by after `read`.
        """
        if tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
            return CLEAN
        low, high = torch.aminmax(_measurable(tensor))
        key = (low.device, low.dtype)
        self._places.append((key, len(self._extremes[key])))
        self._extremes[key] += [low, high]
        return len(self._places) - 1

    def read(self) -> list[Value]:
        """Bring every flag to the host: one transfer for each device and type.

        Returns:
            The values, indexed by handle.
        """
        host = {key: torch.stack(values).tolist() for key, values in self._extremes.items()}
        return [
            Value.FINITE if place is None else _judge(*host[place[0]][place[1] : place[1] + 2])
            for place in self._places
        ]


def dense_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Give the plain tensors that hold a tensor's values.

    Args:
        tensor: Dense, sparse or a subclass that wraps others (a sharded one: its local part).

    Yields:
        Dense tensors; nothing for quantised, opaque and meta tensors.
    """
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from dense_parts(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield tensor._values()  # noqa: SLF001 - coalescing would copy
    elif tensor.layout in {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}:
        yield tensor.values()
    elif tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized:
        yield tensor


def worst(tensor: Tensor) -> Value:
    """Say at once what a tensor holds; waits for the device."""
    flags = Flags()
    for part in dense_parts(tensor.detach()):
        flags.add(part)
    return max(flags.read())


def _measurable(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.element_size() < NARROW else tensor


def _judge(low: float, high: float) -> Value:
    if low != low:  # noqa: PLR0124 - NaN is the one number that differs from itself
        return Value.NAN
    if high == float("inf"):
        return Value.INF
    return Value.MINUS_INF if low == float("-inf") else Value.FINITE
