"""What a forward does beside its inputs while it is written down: no graph would hold it.

An operation on a module's own tensors alone (a counter that is raised, a temperature that is read
as a number, a branch on a flag in a buffer) is run at once, and once; a function with a backward of
its own would leave that behind.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, fx, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

__all__ = ["Beside", "backwards_refused"]

OF_ITS_OWN = "a part of it has a backward of its own"
BY_ITSELF = "it computes with tensors of its own alone"
# What they tell is checked at each call, where the tensor is one of a module's.
GETTERS = {
    getattr(Tensor, name).__get__: name
    for name in (
        "dtype",
        "device",
        "shape",
        "ndim",
        "requires_grad",
        "is_cuda",
        "layout",
        "is_leaf",
    )
}
METHODS: Mapping[Any, str] = {
    Tensor.size: "shape", Tensor.dim: "ndim", Tensor.numel: "shape", Tensor.__len__: "shape",
    Tensor.is_floating_point: "dtype", Tensor.is_complex: "dtype",
}  # fmt: skip
TOLD = {**GETTERS, **METHODS}


class Beside(TorchFunctionMode):
    """Refuses operations on tensors that are no inputs, while it is entered.

    Args:
        root: The block that is written down.

    Attributes:
        told: What was asked of a module's tensors: path of the module, name and property.
        paused: Whether it lets everything pass.
    """

    def __init__(self, root: nn.Module) -> None:
        """Learn the tensors of the block."""
        super().__init__()
        self._names = {id(tensor): place for place, tensor in _tensors(root)}
        self.told: dict[tuple[str, str], None] = {}
        self.paused = False

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Let pass what is written down."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - any function of torch's
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever it returns
        """Run a function, unless it would be run at no later call."""
        given = kwargs or {}
        if not self.paused:
            self._look(func, [args, given])
        return func(*args, **given)

    def _look(self, func: Any, given: list[Any]) -> None:  # noqa: ANN401
        leaves = tree_leaves(given)
        own = [each for each in leaves if isinstance(each, Tensor)]
        if not own or any(isinstance(each, fx.Proxy) for each in leaves):
            return
        if func not in TOLD:
            raise RuntimeError(BY_ITSELF)
        for each in own:
            if id(each) in self._names:
                path, name = self._names[id(each)]
                self.told[path, f"{name}.{TOLD[func]}"] = None


def _tensors(root: nn.Module) -> Iterator[tuple[tuple[str, str], Tensor]]:
    for path, module in root.named_modules():
        for held in (module._parameters, module._buffers, vars(module)):
            for name, value in held.items():
                if isinstance(value, Tensor):
                    yield (path, name), value


@contextmanager
def backwards_refused(beside: Beside) -> Iterator[None]:
    """Raise where a function with a backward of its own is called, in this thread.

    Args:
        beside: Nothing is raised while it is paused.
    """
    thread = threading.get_ident()

    def begin(_self: object, *_args: object, **_kwargs: object) -> None:
        if threading.get_ident() == thread and not beside.paused:
            raise RuntimeError(OF_ITS_OWN)

    BackwardCFunction.__init__ = begin  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del BackwardCFunction.__init__
