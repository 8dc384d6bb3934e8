"""How a micro-batch is run again: the protocol, and the two programs of a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gradwatch.hooks import tensors_in
from gradwatch.non_finite.recipe import HALVES, Recipe

Roots = Tensor | Sequence[Tensor]


class Program(Protocol):
    """One micro-batch's forward and backward pass, to be run any number of times."""

    def forward(self) -> Roots:
        """Run the forward pass on the held batch.

        Returns:
            The loss as it goes into the backward pass (scaled, divided by the
            accumulation), or the several roots of it.
        """
        ...

    def backward(self, roots: Roots) -> None:
        """Run the backward pass; gradients end up in ``p.grad``.

        Args:
            roots: What `forward` gave.
        """

    def recipe(self) -> Recipe | None:
        """Say how it is begun on another machine; None where it cannot be."""
        ...


@dataclass(frozen=True, kw_only=True)
class Suspects:
    """What was seen to be wrong when the micro-batch ran.

    Attributes:
        parameters: Names of the parameters with a non-finite gradient.
        loss: The loss (or roots) then, detached; None where it was not kept.
        order: Layers in execution order, for an answer without a replay.
        compiled: True where code outside the model's modules is compiled.
    """

    parameters: Sequence[str] = ()
    loss: Roots | None = None
    order: Sequence[str] = ()
    compiled: bool = False


@dataclass(frozen=True)
class ClosureProgram:
    """The program of a plain loop: ``loss = run(batch)``, then ``loss.backward()``.

    Attributes:
        run: Computes the loss.
        batch: What it is handed: the held batch.
    """

    run: Callable[[Any], Tensor]
    batch: Any

    def forward(self) -> Roots:
        """Compute the loss."""
        return self.run(self.batch)

    def backward(self, roots: Roots) -> None:
        """Run the backward pass from the loss."""
        torch.autograd.backward(roots)

    def recipe(self) -> Recipe | None:
        """Give none: a function is not written into a file."""
        return None


@dataclass(frozen=True)
class ModelProgram:
    """The program where only the model's call and the gradients at its outputs are known.

    Attributes:
        model: The model.
        args: Positional arguments of its call.
        kwargs: Keyword arguments of its call.
        grad_outputs: Gradient at each tensor it gave, in order; None where there was none.
        autocast: Type autocast computes in, such as ``"float16"``; empty where it is off.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grad_outputs: Sequence[Tensor | None]
    autocast: str = ""

    def forward(self) -> Roots:
        """Call the model."""
        with self._half():
            output = self.model(*self.args, **self.kwargs)
        return list(tensors_in(output))

    def backward(self, roots: Roots) -> None:
        """Run the backward pass from the known gradients."""
        known = zip(each_root(roots), self.grad_outputs, strict=True)
        # By identity: a tensor that is handed out twice has one gradient.
        pairs = {
            id(root): (root, grad)
            for root, grad in known
            if grad is not None and root.requires_grad
        }
        torch.autograd.backward(
            [root for root, _ in pairs.values()], [grad for _, grad in pairs.values()]
        )

    def recipe(self) -> Recipe | None:
        """Name the gradients and the type."""
        return Recipe(kind="model", gradients=self.grad_outputs, autocast=self.autocast)

    def _half(self) -> AbstractContextManager[object]:
        if self.autocast not in HALVES:
            return nullcontext()
        device = next((each.device.type for each in self.model.parameters()), "cpu")
        return torch.autocast(device, HALVES[self.autocast])


def each_root(roots: Roots) -> list[Tensor]:
    """Give one root or several as a list."""
    return [roots] if isinstance(roots, Tensor) else list(roots)
