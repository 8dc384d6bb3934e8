"""What the forward keeps for the backward: which layers, how much, what it takes to do it again.

Read off the graph as a backward begins: nothing is hooked into what PyTorch saves, nothing is
run, and no tensor is held. What checkpointing or offloading packs away is not counted: it is not
there.

Shapes: S saved storages, N nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradwatch.flops import node_flops
from gradwatch.graph.edits import plainly_kept
from gradwatch.graph.operations import PARAMETER, operation_of
from gradwatch.graph.places import Places, storage_of

if TYPE_CHECKING:
    from torch import Tensor

    from gradwatch.readings import FloatArray, IntArray

MOST_NODES = 15_000
_NEVER = -1


class Layer(NamedTuple):
    """One module's part of what is saved.

    Attributes:
        name: The module.
        saved_bytes: Saved by operations that stand directly in it; what several save counts
            for the one that ran first.
        freed_bytes: What would not be saved if the module were checkpointed: everything made
            and saved inside it only.
        flops: Floating-point operations of its forward, to be done again then; see
            `gradwatch.flops`.
    """

    name: str
    saved_bytes: int
    freed_bytes: int
    flops: float


class SavedMemory(NamedTuple):
    """What one forward saved.

    Attributes:
        total_bytes: All saved storages, parameters and buffers left out.
        layers: Modules that save or would free something, in execution order.
        stopped: Whether the look stopped at its bound.
    """

    total_bytes: int = 0
    layers: tuple[Layer, ...] = ()
    stopped: bool = False


class _Storage(NamedTuple):
    size: int
    first: int
    last: int
    made: int


def measure_saved(roots: Iterable[Tensor], places: Places, own: Iterable[Tensor]) -> SavedMemory:
    """Add up what the graph behind some tensors keeps for the backward.

    Args:
        roots: What the backward begins from.
        places: Which module ran when.
        own: Parameters and buffers: they are there anyway.
    """
    look = _look_behind(roots, own, given=places.given, most_nodes=MOST_NODES)
    layers = _by_module(look.storages, look.flops, places)
    total = sum(each.size for each in look.storages)
    return SavedMemory(total, layers, look.stopped)


def saved_by_layer(
    roots: Iterable[Tensor], own: Iterable[Tensor], layer_of: Callable[[int], str]
) -> dict[str, int]:
    """Add up what each layer keeps for the backward, for whoever knows the layers otherwise.

    Args:
        roots: What the backward begins from.
        own: Parameters and buffers: they are there anyway.
        layer_of: Names the layer that ran when a node was made, by the node's number.

    Returns:
        Layer → bytes; what several save counts for the one that ran first.

    Examples:
        >>> import torch
        >>> kept = torch.ones(3, requires_grad=True).exp()
        >>> saved_by_layer([kept.sum()], [], lambda number: "exp")
        {'exp': 12}
    """
    return _saved_in(_look_behind(roots, own).storages, layer_of)


def _look_behind(
    roots: Iterable[Tensor],
    own: Iterable[Tensor],
    given: Collection[int] = (),
    most_nodes: float = inf,
) -> _Look:
    look = _Look({pointer for tensor in own for pointer, _ in storage_of(tensor)}, given)
    look.walk([root.grad_fn for root in roots if root.grad_fn is not None], most_nodes)
    return look


def _saved_in(storages: Iterable[_Storage], layer_of: Callable[[int], str]) -> dict[str, int]:
    saved: dict[str, int] = defaultdict(int)
    for each in storages:
        saved[layer_of(each.first)] += each.size
    return dict(saved)


class _Look:
    """One walk over the nodes; lives no longer than the call."""

    def __init__(self, own: Collection[int], given: Collection[int]) -> None:
        self._own, self._given = own, given
        self._storages: dict[int, _Storage] = {}
        self.flops: list[tuple[int, float]] = []
        self.stopped = False

    @property
    def storages(self) -> list[_Storage]:
        """Everything saved, each storage once."""
        return list(self._storages.values())

    def walk(self, roots: list[Any], most_nodes: float) -> None:
        found = dict.fromkeys(roots)
        waiting = list(found)
        while waiting and len(found) < most_nodes:
            node = waiting.pop()
            for child, _ in node.next_functions:
                if child is not None and child not in found:
                    found[child] = None
                    waiting.append(child)
            self._take(node)
        self.stopped = bool(waiting)

    def _take(self, node: Any) -> None:  # noqa: ANN401 - an autograd node has no public type
        operation = operation_of(node.name())
        if operation == PARAMETER:
            return
        number = int(node._sequence_nr())  # noqa: SLF001 - no public way to ask
        self.flops.append((number, node_flops(node, operation)))
        for tensor in _saved(node):
            for pointer, size in storage_of(tensor):
                if pointer not in self._own:
                    made = _NEVER if pointer in self._given else _made(tensor, number)
                    self._add(pointer, size, number, made)

    def _add(self, pointer: int, size: int, number: int, made: int) -> None:
        known = self._storages.get(pointer, _Storage(size, number, number, made))
        first, last = min(known.first, number), max(known.last, number)
        self._storages[pointer] = _Storage(size, first, last, min(known.made, made))


def _saved(node: Any) -> Iterator[Tensor]:  # noqa: ANN401 - as above
    for _, name in plainly_kept(node):
        try:
            kept = getattr(node, name)
        except RuntimeError:  # written over or let go: the backward will say so itself
            continue
        every = kept if isinstance(kept, tuple | list) else (kept,)
        yield from (each for each in every if each is not None)


def _made(tensor: Tensor, saver: int) -> int:
    """Tell when a saved tensor's memory was made; a mask or statistic is made by its saver."""
    base = tensor._base if tensor._base is not None else tensor  # noqa: SLF001 - views share memory
    maker: Any = base.grad_fn
    if maker is not None:
        return int(maker._sequence_nr())  # noqa: SLF001 - no public way to ask
    return _NEVER if base.requires_grad else saver


def _by_module(
    storages: Sequence[_Storage], flops: Sequence[tuple[int, float]], places: Places
) -> tuple[Layer, ...]:
    columns = np.asarray(storages, dtype=np.int64).reshape(-1, 4).T
    numbers, costs = _sorted(flops)
    saved = _saved_in(storages, places.layer_of)
    freed: dict[str, int] = defaultdict(int)
    again: dict[str, float] = defaultdict(float)
    for name, begin, end in places.spans:
        freed[name] += _freed(columns, begin, end)
        low, high = np.searchsorted(numbers, (begin, end))
        again[name] += float(costs[high] - costs[low])
    order = dict.fromkeys((*places.called, *saved))
    every = (Layer(name, saved.get(name, 0), freed[name], again[name]) for name in order)
    return tuple(each for each in every if each.saved_bytes or each.freed_bytes)


def _sorted(flops: Sequence[tuple[int, float]]) -> tuple[IntArray, FloatArray]:
    """Give the nodes' numbers in order, and the sum of the operations before each."""
    ordered = sorted(flops)
    numbers = np.asarray([number for number, _ in ordered], dtype=np.int64)
    return numbers, np.concatenate([[0.0], np.cumsum([cost for _, cost in ordered])])


def _freed(columns: IntArray, begin: int, end: int) -> int:
    size, first, last, made = columns
    inside = (first >= begin) & (last < end) & (made >= begin)
    return int(size[inside].sum())
