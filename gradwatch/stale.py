"""Gradients that nobody clears: what is still there when the next backward begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwatch.boarding import board, collect
from gradwatch.norms import NormGroup, NormPlan, measurable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from gradwatch.readings import FloatArray
    from gradwatch.transfer import Transfer


class _Look(NamedTuple):
    parameters: list[nn.Parameter]
    gradients: list[int]
    groups: list[NormGroup]


class StaleWatch:
    """Look at the gradients left over each time a backward begins.

    A parameter counts as never cleared when its gradient was neither None nor zero at
    every start of a backward since its optimizer's last step. One clearing in between is
    enough, so generators and discriminators that clear before their own backward are fine.
    """

    def __init__(self) -> None:
        """Start with nothing to look at: before a first step there is nothing to clear."""
        # By identity: hashing a tensor costs more than looking at it.
        self._candidates: dict[int, nn.Parameter] = {}
        self._looks: list[_Look] = []
        self._loaded: list[_Look] = []

    def backward_begins(self) -> None:
        """Measure what is left over; parameters without a gradient have been cleared."""
        candidates = self._candidates.values()
        left = [p for p in candidates if p.grad is not None and measurable(p.grad)]
        self._candidates = {id(p): p for p in left}
        grads = [p.grad for p in left if p.grad is not None]
        if grads:
            self._looks.append(
                _Look(left, [id(grad) for grad in grads], NormPlan(grads).measure(grads))
            )

    def load(self, transfer: Transfer) -> None:
        """Put all looks since the last step on board."""
        self._loaded = self._looks if self._candidates else []
        for number, look in enumerate(self._loaded):
            board(transfer, f"stale{number}", look.groups)

    def unload(self, values: Mapping[str, FloatArray]) -> dict[nn.Parameter, float]:
        """Give each never cleared parameter with the smallest norm seen left over."""
        least: dict[nn.Parameter, float] = {}
        for number, look in enumerate(self._loaded):
            norms = collect(values, f"stale{number}", look.groups, len(look.parameters))
            for parameter, seen, norm in zip(look.parameters, look.gradients, norms, strict=True):
                # One that was replaced since (by hand, from torch.func) has not piled up.
                kept = float(norm) if id(parameter.grad) == seen else 0.0
                least[parameter] = min(least.get(parameter, np.inf), kept)
        return {p: norm for p, norm in least.items() if id(p) in self._candidates and norm > 0}

    def stepped(self, parameters: Sequence[nn.Parameter]) -> None:
        """Begin anew for parameters whose optimizer is about to step."""
        self._candidates.update(zip(map(id, parameters), parameters, strict=True))
        self._looks = []
