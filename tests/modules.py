"""Modules that many tests build their models of."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def same(value: Any) -> Any:
    return value


class Apply(nn.Module):
    """A function as a module, its result perhaps wrapped."""

    def __init__(
        self, function: Callable[[Tensor], Tensor], wrap: Callable[[Tensor], Any] = same
    ) -> None:
        super().__init__()
        self.function, self.wrap = function, wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.function(x))


class Carry(nn.Module):
    """A module under test between two linear layers."""

    def __init__(self, op: nn.Module, pick: Callable[[Any], Tensor] = same, width: int = 4) -> None:
        super().__init__()
        self.enc, self.op, self.head = nn.Linear(4, width), op, nn.Linear(width, 3)
        self.pick = pick

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.pick(self.op(self.enc(x))))
        return out
