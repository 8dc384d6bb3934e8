"""What is replaced by what: operations, candidates, and the calls they are judged on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from gradwatch.findings import ROOT
from gradwatch.non_finite.rng import RandomState

__all__ = ["Call", "Candidate", "Function", "Half", "Key", "Operation"]

Function = Callable[..., Any]
"""Called with the member modules, then with the inputs."""

Key = tuple[str, str, str]
"""Layer, kind of change and provider: what names a candidate on every rank and in every run."""


class Half(NamedTuple):
    """Whether autocast was on, and the type it computed in.

    Attributes:
        device: Device type.
        dtype: The type as torch names it; None where it was off.
    """

    device: str
    dtype: Any


class Call(NamedTuple):
    """One live call of an operation, copied.

    Attributes:
        inputs: Positional inputs behind the members.
        kwargs: Keyword inputs.
        gradients: Gradient at each tensor of the output, None where there was none.
        random: Random number generators at the call.
        half: Autocast at the call.
    """

    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    gradients: tuple[Tensor | None, ...]
    random: RandomState
    half: Half


class Operation(NamedTuple):
    """One thing a fused function can take over.

    Attributes:
        kind: What it is, such as ``"BatchNorm2d → relu"``.
        members: Modules it uses, by their path below the candidate's module; ``""`` is itself.
        stock: What runs today.
        fused: What would run.
        skipped: Modules that are not called any more, members among them.
    """

    kind: str
    members: tuple[str, ...]
    stock: Function
    fused: Function
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A module whose forward could be replaced.

    Attributes:
        layer: Its name as the user wrote it.
        provider: Who offers the replacement.
        module: The module; wherever the model holds it, it is the same object.
        operations: What the replacement takes over.
        build: Makes the new forward from one function an operation.
        elements: Elements of the largest input.
    """

    layer: str
    provider: str
    module: nn.Module
    operations: tuple[Operation, ...]
    build: Callable[[Sequence[Function]], Function]
    elements: int

    @property
    def kind(self) -> str:
        """What is replaced, each kind once."""
        return ", ".join(dict.fromkeys(each.kind for each in self.operations))

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it alike on every rank and in every run of the same model."""
        return self.layer, self.kind, self.provider

    @property
    def skipped(self) -> dict[str, nn.Module]:
        """The modules below it whose own forward is not called any more, by full name."""
        paths = dict.fromkeys(path for each in self.operations for path in each.skipped)
        above = "" if self.layer == ROOT else f"{self.layer}."
        return {f"{above}{path}": self.module.get_submodule(path) for path in paths}

    def forward(self) -> Function:
        """Give the forward to be bound on the module."""
        return self.build([each.fused for each in self.operations])
