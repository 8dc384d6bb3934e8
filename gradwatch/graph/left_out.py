"""Parameters a backward was told to leave out: reached by the graph, and meant to get nothing.

``loss.backward(inputs=...)`` runs the part of the graph that leads to its inputs. From the
gradients alone that looks as if the way to all others were cut; the engine, asked while it runs,
knows better.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import get_gradient_edge

from gradwatch.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from gradwatch.graph.walk import Graph


class LeftOut:
    """Ask the engine, once a backward has begun, which parameters it will give a gradient."""

    def __init__(self) -> None:
        """Start with none."""
        self._left: set[str] = set()
        self._run: set[str] = set()

    def attach(
        self, roots: Sequence[Tensor], graph: Graph, parameters: Mapping[nn.Parameter, str]
    ) -> Undo:
        """Wait for the backward of each root; the undo stops waiting.

        Args:
            roots: What the graph was walked from.
            graph: The walked graph.
            parameters: Parameter → its name.
        """
        undo = Undo()
        for number, root in enumerate(root for root in roots if root.grad_fn is not None):
            bit = 1 << number
            behind = [own for own, name in parameters.items() if graph.origin.get(name, 0) & bit]
            names = [parameters[own] for own in behind]
            undo.add(root.register_hook(partial(self._ask, behind, names)).remove)
        return undo

    def _ask(self, parameters: list[nn.Parameter], names: list[str], _grad: Tensor) -> None:
        for parameter, name in zip(parameters, names, strict=True):
            (self._run if _will_run(parameter) else self._left).add(name)

    @property
    def names(self) -> set[str]:
        """Names of the parameters that each backward so far has left out."""
        return self._left - self._run


def _will_run(parameter: nn.Parameter) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(get_gradient_edge(parameter).node))  # noqa: SLF001 - no public way to ask
    except (RuntimeError, AttributeError):
        # It is an input of `torch.autograd.grad`; or the engine does not say.
        return True
