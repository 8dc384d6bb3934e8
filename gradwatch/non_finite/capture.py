"""What a micro-batch needs to be run again from its exact start, held cheaply."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gradwatch.non_finite.rng import RandomState

DEEPEST = 6


@dataclass(frozen=True, kw_only=True)
class Held:
    """One micro-batch as it was before its forward pass.

    Attributes:
        batch: The batch in containers of its own, so that ``batch.pop()`` leaves it whole.
        batch_index: Index of the batch within the epoch.
        micro_batch: Index of the micro-batch within its optimizer step.
        random: Random number generators at the start of the micro-batch.
        versions: Version counter of every tensor of the batch, by path.
    """

    batch: Any
    batch_index: int
    micro_batch: int
    random: RandomState
    versions: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Bytes of the tensors that stay alive because of this record."""
        batch = sum(tensor.nbytes for _, tensor in self.tensors() if not tensor.is_sparse)
        return batch + self.random.bytes

    @property
    def size(self) -> int | None:
        """Number of samples, by the first tensor of the batch that has dimensions."""
        return next((tensor.shape[0] for _, tensor in self.tensors() if tensor.dim()), None)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Walk the batch: path such as ``batch['x'][0]`` and tensor."""
        return named_tensors(self.batch, "batch")

    def edited(self) -> tuple[str, ...]:
        """Name the tensors that were changed in place since they were held."""
        return tuple(
            path for path, tensor in self.tensors() if _version(tensor) != self.versions.get(path)
        )

    def restore_rng(self) -> None:
        """Set every random number generator back to the start of the micro-batch."""
        self.random.restore()


def hold(batch: Any, batch_index: int = 0, micro_batch: int = 0) -> Held:  # noqa: ANN401 - any batch
    """Hold a micro-batch before its forward pass; tensors are shared, not copied.

    Args:
        batch: What the training step is handed.
        batch_index: Index of the batch within the epoch.
        micro_batch: Index of the micro-batch within its optimizer step.

    Returns:
        The record a replay starts from.

    Examples:
        >>> batch = {"x": torch.ones(2, 3)}
        >>> held = hold(batch)
        >>> _ = batch.pop("x").add_(1)
        >>> held.batch["x"].shape, held.edited()
        (torch.Size([2, 3]), ("batch['x']",))
    """
    own = tree_map(_own, batch)
    return Held(
        batch=own,
        batch_index=batch_index,
        micro_batch=micro_batch,
        random=RandomState.take(),
        versions={path: _version(tensor) for path, tensor in named_tensors(own, "batch")},
    )


@contextmanager
def rng_preserved() -> Iterator[None]:
    """Run a block that leaves every random number generator as it was before."""
    before = RandomState.take()
    try:
        yield
    finally:
        before.restore()


def named_tensors(value: object, path: str, depth: int = DEEPEST) -> Iterator[tuple[str, Tensor]]:
    """Walk dictionaries, sequences, named tuples, dataclasses and plain objects for tensors.

    Args:
        value: What to walk.
        path: How the value itself is called.
        depth: How many containers deep to look.

    Yields:
        The path as it would be written in code, and the tensor.
    """
    if isinstance(value, Tensor):
        yield path, value
    elif depth:
        for step, inner in _children(value):
            yield from named_tensors(inner, path + step, depth - 1)


def _children(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping | UserDict):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{name}", getattr(value, name)) for name in value._fields)
    elif isinstance(value, list | tuple):
        yield from ((f"[{place}]", inner) for place, inner in enumerate(value))
    elif is_dataclass(value):
        yield from ((f".{item.name}", getattr(value, item.name)) for item in fields(value))
    elif type(value).__module__ != "builtins" and hasattr(value, "__dict__"):
        yield from ((f".{name}", inner) for name, inner in vars(value).items())


def _own(leaf: object) -> object:
    return copy.copy(leaf) if isinstance(leaf, Mapping | UserDict) else leaf


def _version(tensor: Tensor) -> int:
    # A tensor made in inference mode counts no versions.
    return 0 if torch.is_inference(tensor) else tensor._version  # noqa: SLF001 - as autograd counts
