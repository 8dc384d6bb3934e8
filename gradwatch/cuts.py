"""Where the graph is cut: modules that take in a gradient's path and give none out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradwatch.hooks import Hook, tensors_in, under_functorch, unreachable
from gradwatch.layers import clean_name
from gradwatch.undo import Undo

if TYPE_CHECKING:
    from torch import nn


class CutProbe:
    """Look at every module's inputs and outputs during one forward.

    Args:
        model: The model, unwrapped.

    Attributes:
        cuts: Innermost modules whose input needed a gradient and whose output did not,
            in the order they ran.
    """

    def __init__(self, model: nn.Module) -> None:
        """Remember the model; nothing is attached yet."""
        self._model = model
        self._open: list[int] = []
        self.cuts: dict[str, None] = {}

    def attach(self) -> Undo:
        """Set the hooks; the undo removes them."""
        undo = Undo()
        blocked = unreachable(self._model)
        for name, module in self._model.named_modules():
            if module not in blocked:
                self._attach(clean_name(name), module, undo)
        return undo

    def _attach(self, name: str, module: nn.Module, undo: Undo) -> None:
        enter = Hook(lambda *_: self._open.append(len(self.cuts)))
        # Taken off by a hook of the same call, it is called once more, without the keywords.
        leave = Hook(lambda _module, *given: self._leave(name, given[:-1], given[-1]))
        undo.add(module.register_forward_pre_hook(enter).remove)
        undo.add(module.register_forward_hook(leave, with_kwargs=True).remove)

    def _leave(self, name: str, inputs: tuple[object, ...], output: object) -> None:
        before = self._open.pop() if self._open else len(self.cuts)
        if len(self.cuts) > before or under_functorch() or not torch.is_grad_enabled():
            return
        outputs = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
        needed = any(tensor.requires_grad for tensor in tensors_in(inputs))
        if needed and outputs and not any(tensor.requires_grad for tensor in outputs):
            self.cuts[name] = None
