"""Who wrote which memory: the thread that leads from a bad value back to where it was born."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gradwatch.non_finite.flags import CLEAN, Flags, dense_parts

Geometry = tuple[object, ...]


class Use(NamedTuple):
    """One tensor at one moment: read, or just written.

    Attributes:
        storage: Number of its memory.
        version: How many recorded operations had written to that memory.
        flag: Handle of its flag.
        rows: Size of its dimension 0, -1 without one.
    """

    storage: int
    version: int
    flag: int
    rows: int


class Memory:
    """Follow memory rather than tensors: views and saved tensors share it.

    Args:
        flags: Where finite-or-not is kept.

    Attributes:
        writers: Indices of the operations that wrote to a memory, in order.
        outside: Memory that no recorded operation made.
    """

    def __init__(self, flags: Flags) -> None:
        """Start with no memory known."""
        self.writers: dict[int, list[int]] = defaultdict(list)
        self.outside: set[int] = set()
        self._flags = flags
        self._known: dict[tuple[int, int, Geometry], int] = {}
        self._blank: set[int] = set()
        # Weak references: the address is not given to other memory while one is held.
        self._alive: dict[int, StorageWeakRef] = {}

    def reads(self, tensor: Tensor) -> list[Use]:
        """Note what a tensor holds now."""
        return [self._use(part, self._storage(part, made=False)) for part in dense_parts(tensor)]

    def know(self, tensor: Tensor) -> None:
        """Note memory that is about to be overwritten unread: it was there before."""
        for part in dense_parts(tensor):
            self._storage(part, made=False)

    def writes(self, tensor: Tensor, operation: int, *, blank: bool = False) -> list[Use]:
        """Note that an operation has written a tensor."""
        uses = []
        for part in dense_parts(tensor):
            storage = self._storage(part, made=True)
            writers = self.writers[storage]
            if not writers or writers[-1] != operation:
                writers.append(operation)
            self._blank.add(storage) if blank else self._blank.discard(storage)
            uses.append(self._use(part, storage))
        return uses

    def _storage(self, part: Tensor, *, made: bool) -> int:
        number = storage_number(part)
        if number not in self._alive:
            reference = StorageWeakRef(part.untyped_storage())
            self._alive[number] = reference
            if not made:
                self.outside.add(number)
        return number

    def _use(self, part: Tensor, storage: int) -> Use:
        version = len(self.writers[storage])
        rows = part.shape[0] if part.dim() else -1
        if storage in self._blank:
            return Use(storage, version, CLEAN, rows)
        key = (storage, version, _geometry(part))
        if key not in self._known:
            self._known[key] = self._flags.add(part)
        return Use(storage, version, self._known[key], rows)


def storage_number(part: Tensor) -> int:
    """Give the number of a dense tensor's memory: views share it, saved tensors too."""
    number: int = part.untyped_storage()._cdata  # noqa: SLF001 - identity has no public name
    return number


def _geometry(part: Tensor) -> Geometry:
    """Name the elements a tensor covers: one name for a dense tensor and its transposes."""
    layout = [pair for pair in zip(part.stride(), part.shape, strict=True) if pair[1] > 1]
    reach = 1 + sum(stride * (size - 1) for stride, size in layout)
    if reach == part.numel():
        return (part.dtype, part.storage_offset(), reach)
    return (part.dtype, part.storage_offset(), *sorted(layout))
