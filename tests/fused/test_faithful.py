"""A forward that was written out wrongly is found out before anything is tried."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.fused.faithful import unfaithful
from gradwatch.fused.observe import Visit, half_now
from gradwatch.fused.operation import Candidate, Function
from tests.fused.lab import reason_of, run_trial
from tests.fused.nets import Chains

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))


@dataclasses.dataclass
class Output:
    """What a model returns."""

    hidden: Tensor


class Block(nn.Module):
    """What is rewritten."""

    def forward(self, x: Tensor) -> Any:
        return Output(x * 2)


class Counting(Block):
    """Never gives the same twice."""

    calls = 0

    def forward(self, x: Tensor) -> Any:
        Counting.calls += 1
        return Output(x * Counting.calls)


def written(forward: Function, block: nn.Module) -> str:
    def build(_functions: Sequence[Function]) -> Function:
        return forward

    candidate = Candidate(
        layer="block", provider="lab", module=block, operations=(), build=build, elements=1
    )
    return unfaithful(candidate, Visit((X,), {}, half_now("cpu")))


def raises(_self: nn.Module, x: Tensor) -> Any:
    raise ValueError(x)


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        (lambda _self, x: Output(x + x), ""),
        (lambda _self, x: Output(x * 2.1), "its forward, written out, does not give what it gives"),
        (lambda _self, x: {"hidden": x * 2}, "does not give what it gives"),
        (lambda _self, x: Output((x * 2).double()), "does not give what it gives"),
        (lambda _self, x: Output((x * 2)[:1]), "does not give what it gives"),
        (raises, "its forward, written out, raises ValueError"),
    ],
)
def test_value_type_and_shape_are_compared(forward: Callable[..., Any], told: str) -> None:
    found = written(forward, Block())
    assert told in found
    assert bool(found) == bool(told)


def test_what_never_gives_the_same_has_no_measure() -> None:
    assert not written(lambda _self, x: Output(x * 7), Counting())


class Once(Block):
    """Cannot be run again."""

    def forward(self, x: Tensor) -> Any:
        raise RuntimeError("out of memory")


def test_what_cannot_be_run_again_is_not_rewritten() -> None:
    assert written(raises, Once()) == "its forward cannot be run again (RuntimeError)"


class Modal(nn.Module):
    """Computes something else where gradients are off, of which a trace fixes one way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(8, 8), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.linear(x))
        return y * 2 if torch.is_grad_enabled() else y


def test_a_forward_that_was_traced_wrongly_is_refused_with_the_reason() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Modal(), nn.Linear(8, 3))
    result = run_trial(model, [Chains()], (X, torch.arange(4) % 3), mode="force")
    assert result.kept == ()
    assert reason_of(result, "refused") == "its forward, written out, does not give what it gives"
