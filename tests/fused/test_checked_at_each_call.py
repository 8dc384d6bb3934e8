"""What a trace took for granted, one thing at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

from gradwatch.fused.blocks import trace
from gradwatch.fused.guards import guard, members
from gradwatch.fused.observe import Visit
from gradwatch.fused.operation import Half
from gradwatch.fused.providers import Site
from gradwatch.fused.trial import Result
from tests.fused.lab import run_trial

OFF, ON = Half("cpu", None), Half("cpu", torch.bfloat16)
X = torch.zeros(2, 8)


class Block(nn.Module):
    """A product and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.steps = nn.Linear(8, 8), nn.ReLU(), 0

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.up(x)) + x


class Counts(Block):
    """It notes down how often it was called."""

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return super().forward(x)


def taken_for_granted(value: Any, half: Half = OFF) -> tuple[Any, ...]:
    return guard(Block(), {"value": value}, half, ())


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (X, X.double()),
        (X, X[None]),
        (X, nn.Parameter(X)),
        (X, None),
        (True, False),
        ("sum", "mean"),
        ([X], (X,)),
        ((X, X), (X,)),
        ((X, 1), (X, 2)),
        ({"a": X}, {"b": X}),
        ({"a": 1}, {"a": 2}),
    ],
)
def test_arguments_of_another_kind_are_another_call(own: Any, other: Any) -> None:
    assert taken_for_granted(own) != taken_for_granted(other)


@pytest.mark.parametrize("other", [torch.ones(2, 8), torch.ones(5, 8), X.clone().requires_grad_()])
def test_other_numbers_and_lengths_are_not(other: Tensor) -> None:
    assert taken_for_granted(X) == taken_for_granted(other)


def test_autocast_is_taken_for_granted() -> None:
    assert taken_for_granted(X, OFF) != taken_for_granted(X, ON)
    assert taken_for_granted(X, ON) != taken_for_granted(X, Half("cpu", torch.float16))


def evaluates(block: Any) -> None:
    block.eval()


def evaluates_what_is_skipped(block: Any) -> None:
    block.act.eval()


def takes_another_form(block: Any) -> None:
    block.act = nn.GELU()


def works_in_place(block: Any) -> None:
    block.act.inplace = True


def is_taken_away(block: Any) -> None:
    del block.act


def gets_another_child(block: Any) -> None:
    block.extra = nn.Identity()


def loses_its_bias(block: Any) -> None:
    block.up.bias = None


def gets_a_hook(block: Any) -> None:
    block.act.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    "change",
    [
        evaluates, evaluates_what_is_skipped, takes_another_form, works_in_place, is_taken_away,
        gets_another_child, gets_a_hook,
    ],
)  # fmt: skip
def test_a_block_that_was_changed_is_not_what_was_traced(change: Callable[[Any], None]) -> None:
    block = Block()
    before = members(block, ("act",), ())
    assert members(block, ("act",), ()) == before
    change(block)
    assert members(block, ("act",), ()) != before


def test_of_a_child_that_was_looked_into_the_parameters_must_be_there() -> None:
    block = Block()
    before = members(block, (), ("up",))
    loses_its_bias(block)
    assert members(block, (), ("up",)) != before


class Pairs:
    """Takes over a product and the activation behind it."""

    name = "pairs"

    def propose(self, site: Site) -> Any:
        return linear_relu if site.pattern == "Linear → act" else None


def linear_relu(linear: nn.Linear, x: Tensor) -> Tensor:
    return F.relu(F.linear(x, linear.weight, linear.bias))


def tried(kind: type[Block]) -> Result:
    batch = torch.randn(6, 8), torch.arange(6) % 3
    model = nn.Sequential(nn.Linear(8, 8), kind(), nn.Linear(8, 3))
    return run_trial(model, [Pairs()], batch, mode="force")


def test_a_forward_that_changes_what_its_module_holds_is_not_rewritten() -> None:
    assert [each.layer for each in tried(Block).kept] == ["1"]
    assert tried(Counts).kept == ()
    told = trace(Counts(), Visit((X,), {}, OFF))
    assert told == "its forward changes what the module holds"


def test_beside_a_hook_on_all_calls_a_chain_is_refused_with_the_reason() -> None:
    hook = register_module_forward_hook(lambda *_: None)
    try:
        result = tried(Block)
    finally:
        hook.remove()
    assert result.kept == ()
    assert [(row.verdict, row.reason) for row in result.rows] == [
        ("refused", "a hook on the calls of all modules would not fire")
    ]
