"""Bytes that a run of operations must move: what enters it and what leaves it, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Piece(NamedTuple):
    """What one tensor occupies.

    Attributes:
        storage: Stands for the memory it lies in; different for every live storage.
        offset: First element in it.
        num_bytes: Bytes of its distinct elements (an expanded dimension counts once).
    """

    storage: int
    offset: int
    num_bytes: float


class Storages:
    """Give storages names that are never used twice, without keeping their memory."""

    def __init__(self) -> None:
        """Start with none."""
        self._known: dict[int, StorageWeakRef] = {}
        self._sizes: dict[int, float] = {}

    def piece(self, tensor: Tensor) -> Piece | None:
        """Describe a tensor; None where it has no memory of its own kind (a wrapper, sparse)."""
        try:
            storage = tensor.untyped_storage()
            size, offset = storage.nbytes(), tensor.storage_offset()
        except (RuntimeError, NotImplementedError):
            return None
        key: int = storage._cdata
        if key not in self._known:
            # A weak reference keeps the handle from being given to another storage.
            self._known[key] = StorageWeakRef(storage)
        self._sizes[key] = float(size)
        return Piece(key, int(offset), min(_distinct_bytes(tensor), float(size)))

    def alive(self, storage: int) -> bool:
        """Tell whether anyone still holds a storage."""
        return not self._known[storage].expired()

    def size(self, storage: int) -> float:
        """Give the bytes of a storage."""
        return self._sizes[storage]


def _distinct_bytes(tensor: Tensor) -> float:
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= 1 if stride == 0 and size > 0 else size
    return float(count * tensor.element_size())


class Region:
    """A run of operations taken as one: temporaries inside it do not count.

    Args:
        storages: Names the memory.
    """

    def __init__(self, storages: Storages) -> None:
        """Start with nothing read or written."""
        self._storages = storages
        self._reads: dict[int, dict[int, float]] = {}
        self._changes: dict[int, float] = {}
        self._made: dict[int, float] = {}

    def add(
        self,
        reads: Sequence[Piece],
        changes: Sequence[Piece],
        made: Sequence[Piece],
    ) -> None:
        """Take one operation in.

        Args:
            reads: What it read.
            changes: What it wrote into that was there before.
            made: What it returned that is new.
        """
        for piece in reads:
            if piece.storage not in self._made:
                views = self._reads.setdefault(piece.storage, {})
                views[piece.offset] = max(views.get(piece.offset, 0.0), piece.num_bytes)
        for piece in changes:
            if piece.storage not in self._made:
                self._changes[piece.storage] = max(
                    self._changes.get(piece.storage, 0.0), piece.num_bytes
                )
        for piece in made:
            self._made[piece.storage] = max(self._made.get(piece.storage, 0.0), piece.num_bytes)

    def moved_bytes(self) -> float:
        """Count what was read from outside, changed outside, or made here and still lives."""
        read = sum(
            min(sum(views.values()), self._storages.size(storage))
            for storage, views in self._reads.items()
        )
        made = sum(size for key, size in self._made.items() if self._storages.alive(key))
        return read + sum(self._changes.values()) + made
