"""A place in a model where a fused function may stand."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from torch import nn

from gradwatch.fused.behaviour import NormForm
from gradwatch.fused.loss_forms import LossForm

__all__ = ["Pattern", "Site"]

Pattern = Literal[
    "module", "norm", "add → norm", "gate", "Linear → act", "BatchNorm2d → act",
    "BatchNorm2d → add → act", "GroupNorm → act", "loss", "cross-entropy",
]  # fmt: skip


class Site(NamedTuple):
    """A place in a model where a fused function may stand.

    Attributes:
        pattern: What stands there: ``"module"`` for a module by itself, else a hand-written norm or
            loss or a chain of operations.
        members: The modules with parameters that take part; a fused function is called with them
            first.
        inputs: Live inputs, which come behind them.
        norm: What the norm computes, where there is one.
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``, where there is one.
        loss: What the cross-entropy computes, where there is one.
    """

    pattern: Pattern
    members: tuple[nn.Module, ...]
    inputs: tuple[Any, ...]
    norm: NormForm | None = None
    activation: str = ""
    loss: LossForm | None = None

    @property
    def module(self) -> nn.Module | None:
        """The module, where one stands by itself (``"module"``, ``"norm"`` and ``"loss"``)."""
        return self.members[0] if self.pattern in ("module", "norm", "loss") else None

    @property
    def kind(self) -> str:
        """How it is told."""
        if self.pattern == "module":
            return type(self.members[0]).__name__
        if self.pattern == "loss":
            return "cross-entropy by hand"
        norm = f"{self.norm.kind}" if self.norm is not None else "norm"
        by_hand = f"{norm} by hand" if self.pattern == "norm" else norm
        named = self.pattern.replace("act", self.activation)
        return named.replace("norm", by_hand).replace("gate", f"{self.activation} gate")
