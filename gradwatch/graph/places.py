"""Which layer a node of the graph was made in, known from when it was made.

PyTorch numbers the nodes of a thread in the order they are made. The number at which each
module begins and ends its forward is noted; the node itself is never held.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import torch
from torch._C._autograd import _get_sequence_nr

from gradwatch.findings import LOSS, ROOT
from gradwatch.hooks import Hook, tensors_in, under_functorch, unreachable
from gradwatch.layers import clean_name
from gradwatch.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn


def next_number() -> int:
    """Give the number that the next node of this thread will have."""
    return int(_get_sequence_nr())


def storage_of(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Give a tensor's memory: where it begins and its bytes.

    Args:
        tensor: The tensor.

    Yields:
        One pair; none where it has no single memory of its own (sparse, wrapped, without data).
    """
    try:
        storage = tensor.untyped_storage()
        pointer, size = storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError, ValueError):
        return
    if pointer:
        yield pointer, size


class Places:
    """Note when each module of a model runs, for one forward.

    Modules that take no hook (compiled, scripted) count as their parent.

    Args:
        model: The model, unwrapped.

    Attributes:
        called: Module → whether gradients were recorded, in the order of the first call.
        spans: (module, number at its begin, number at its end) of each call that is over.
        given: Memory of the tensors without a graph that modules were handed: the batch, masks.
        paused: True during a backward, where checkpointing runs modules again, perhaps on
            another thread.
    """

    def __init__(self, model: nn.Module) -> None:
        """Remember the model; nothing is attached yet."""
        self._model = model
        self.called: dict[str, bool] = {}
        self.spans: list[tuple[str, int, int]] = []
        self.given: set[int] = set()
        self.paused = False
        self._numbers: list[int] = []
        self._names: list[str] = []
        self._open: list[tuple[str, int]] = []
        self._left = 0

    def attach(self) -> Undo:
        """Begin anew and set the hooks; the undo removes them."""
        self.called, self.spans, self._open, self.paused = {}, [], [], False
        self.given = set()
        self._numbers, self._names = [next_number()], [ROOT]
        self._left = 1 << 62
        undo, blocked = Undo(), unreachable(self._model)
        for raw, module in self._model.named_modules():
            if module not in blocked:
                self._attach(clean_name(raw), module, undo)
        return undo

    def _attach(self, name: str, module: nn.Module, undo: Undo) -> None:
        enter = Hook(lambda _module, *given: self._enter(name, given))
        undo.add(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
        undo.add(module.register_forward_hook(Hook(lambda *_: self._leave(name))).remove)

    def _enter(self, name: str, given: object) -> None:
        if self.paused or under_functorch():
            return
        self.given.update(
            pointer
            for tensor in tensors_in(given)
            if tensor.grad_fn is None
            for pointer, _ in storage_of(tensor)
        )
        recorded = torch.is_grad_enabled()
        self.called[name] = self.called.get(name, False) or recorded
        self._open.append((name, next_number()))
        self._note(name)

    def _leave(self, name: str) -> None:
        if not self.paused and self._open and self._open[-1][0] == name:
            _, begun = self._open.pop()
            self._note(self._open[-1][0] if self._open else ROOT)
            self._left = next_number()
            self.spans.append((name, begun, self._left))

    def _note(self, name: str) -> None:
        self._numbers.append(next_number())
        self._names.append(name)

    def layer_of(self, number: int) -> str:
        """Name the innermost module that ran when a node was made.

        Args:
            number: The node's sequence number.

        Returns:
            The module's name; ``<loss>`` after the last module, ``<root>`` between modules.
        """
        if number >= self._left:
            return LOSS
        return self._names[max(bisect_right(self._numbers, number) - 1, 0)]
