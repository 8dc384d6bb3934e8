"""Bytes that each module keeps from the forward for the backward."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch.autograd import graph
from torch.nn.parameter import is_lazy

from gradwatch.findings import LOSS
from gradwatch.undo import Undo, patch_instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from gradwatch.roofline.spans import Spans


class SavedBytes:
    """Count the memory saved for the backward, once each, at the module that saved it first.

    Parameters and buffers are not counted: they live anyway. An activation that one module
    saves as its output and the next as its input counts for the one that ran first.

    Args:
        model: The model.
        spans: Knows which module is running; attached already.

    Attributes:
        by_layer: Layer → bytes.
    """

    def __init__(self, model: nn.Module, spans: Spans) -> None:
        """Start with nothing counted."""
        self.by_layer: dict[str, float] = {}
        self._model, self._spans = model, spans
        self._seen: set[int] = set()

    def attach(self) -> Undo:
        """Set torch's hooks for saved tensors; the tensors themselves are handed on.

        torch refuses such hooks under `torch.func.grad`, so there they step aside.

        Returns:
            The undo; to be called on the thread that called this.
        """
        own = [*self._model.parameters(), *self._model.buffers()]
        self._seen |= {_address(tensor) for tensor in own if not is_lazy(tensor)}
        undo, hooks = Undo(), graph.saved_tensors_hooks(self._pack, _unpack)
        aside = _stepping_aside(graph.disable_saved_tensors_hooks, hooks)
        undo.add(patch_instance(graph, "disable_saved_tensors_hooks", aside))
        hooks.__enter__()
        undo.add(hooks.__exit__)
        return undo

    def _pack(self, tensor: Tensor) -> Tensor:
        address = _address(tensor)
        if address not in self._seen:
            self._seen.add(address)
            running = self._spans.running()
            layer = running.layer if running is not None else LOSS
            saved = _stored_bytes(tensor)
            self.by_layer[layer] = self.by_layer.get(layer, 0.0) + saved
        return tensor


def _unpack(tensor: Tensor) -> Tensor:
    return tensor


def _address(tensor: Tensor) -> int:
    try:
        address: int = tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # a wrapper without memory of its own
        return id(tensor)
    return address


def _stored_bytes(tensor: Tensor) -> float:
    try:
        return float(tensor.untyped_storage().nbytes())
    except (RuntimeError, NotImplementedError):
        return float(tensor.numel() * tensor.element_size())


def _stepping_aside(
    inner: Callable[[str], AbstractContextManager[None]], hooks: graph.saved_tensors_hooks
) -> Callable[[str], AbstractContextManager[None]]:
    @contextmanager
    def disable(message: str) -> Iterator[None]:
        top = torch._C._autograd._top_saved_tensors_default_hooks(True)
        with ExitStack() as back:
            if top is not None and top[0] == hooks.pack_hook:
                hooks.__exit__()
                back.callback(hooks.__enter__)
            with inner(message):
                yield

    return disable
