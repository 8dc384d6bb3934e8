"""Faults people write: stopped before the weights change, under the name of the guilty module."""

import copy
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.modules import Apply, Carry

Run = Callable[..., Any]
Note = Callable[[str, str, str], None]
Function = Callable[[Tensor], Tensor]
Pair = namedtuple("Pair", "hidden extra")  # noqa: PYI024 - untyped ones are what people have


@dataclass
class Record:
    hidden: Tensor
    extra: object = None


class Cell(nn.Module):
    """A recurrent cell that is wrong in one of its calls."""

    def __init__(self, width: int, bad_call: int) -> None:
        super().__init__()
        self.layer, self.bad_call, self.calls = nn.Linear(width, width), bad_call, 0

    def forward(self, h: Tensor) -> Tensor:
        h = torch.tanh(self.layer(h))
        if self.calls == self.bad_call:
            h = guarded_too_late(h)
        self.calls += 1
        return h


class Recurrent(nn.Module):
    """Call one cell again and again."""

    def __init__(self, steps: int, bad_call: int, width: int = 4) -> None:
        super().__init__()
        self.enc, self.head = nn.Linear(4, width), nn.Linear(width, 3)
        self.cell, self.steps = Cell(width, bad_call), steps

    def forward(self, x: Tensor) -> Tensor:
        h, self.cell.calls = self.enc(x), 0
        for _ in range(self.steps):
            h = self.cell(h)
        return self.head(h)


class Checkpointed(nn.Module):
    """Run a block with a fault inside under activation checkpointing."""

    def __init__(self, function: Function, *, reentrant: bool) -> None:
        super().__init__()
        self.enc, self.head, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 3), reentrant
        self.block = nn.ModuleDict({"layer": nn.Linear(4, 4), "op": Apply(function)})

    def run_block(self, x: Tensor) -> Tensor:
        return self.block["op"](self.block["layer"](x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.run_block, self.enc(x), use_reentrant=self.reentrant))


class Block(nn.Module):
    """Call a bare function between two children."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.function(self.a(x)))


class Stack(nn.Module):
    """A block between two linear layers."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.enc, self.block, self.head = nn.Linear(4, 4), Block(function), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.enc(x)))


def guarded_too_late(x: Tensor) -> Tensor:
    return torch.where(x > 0, torch.sqrt(x), x)


def log_guarded_too_late(x: Tensor) -> Tensor:
    return torch.where(x > 0.1, torch.log(x * (x > 0)), x)


def root_of_square(x: Tensor) -> Tensor:
    return torch.sqrt((x * (x > 0)) ** 2)


def norm_of_rows(x: Tensor) -> Tensor:
    masked = x * (x > 1e3)
    return x * masked.square().sum(-1, keepdim=True).sqrt()


def entropy(x: Tensor) -> Tensor:
    share = torch.relu(x)
    share = share / share.sum(-1, keepdim=True).clamp_min(1e-6)
    return -(share * share.log())


def divergence(x: Tensor) -> Tensor:
    share = functional.softmax(x * 1e3, -1)
    return share * (share.log() - functional.log_softmax(x, -1))


def make_batch(size: int = 5, width: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(size, width), torch.randn(size, 3)


def assert_stopped_before_the_update(outcome: Any, before: dict[str, Tensor]) -> Any:
    assert outcome.error is not None
    assert outcome.error.finding == outcome.only("non_finite")
    after = outcome.model.net.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    return outcome.error.finding


def stop(run: Run, net: nn.Module, batches: list[Any], **options: Any) -> Any:
    before = copy.deepcopy(net.state_dict())
    return assert_stopped_before_the_update(run(net, batches, **options), before)


@pytest.mark.parametrize(
    ("case", "function", "phase", "operation"),
    [
        ("b01", entropy, "forward", "aten::log"),
        ("b01", divergence, "forward", "aten::log"),
        ("b02", root_of_square, "backward", "backward of aten::sqrt"),
        ("b02", norm_of_rows, "backward", "backward of aten::sqrt"),
        ("b04", guarded_too_late, "backward", "backward of aten::sqrt"),
        ("b04", log_guarded_too_late, "backward", "backward of aten::log"),
    ],
)
def test_the_module_of_the_faulty_operation_is_named(
    run: Run, note: Note, case: str, function: Function, phase: str, operation: str
) -> None:
    net = Carry(Apply(function))
    with torch.no_grad():
        net.enc.bias[0] = -50.0
    finding = stop(run, net, [make_batch()])
    assert finding.layer == "net.op"
    assert finding.evidence["phase"] == phase
    assert operation in finding.summary
    note(case, f"op, {phase}", finding.summary)


@pytest.mark.parametrize("function", [guarded_too_late, log_guarded_too_late])
def test_a_guard_behind_the_operation_gets_the_advice_to_guard_its_input(
    run: Run, function: Function
) -> None:
    finding = stop(run, Carry(Apply(function)), [make_batch()])
    assert "mask the INPUT" in finding.remedy


@pytest.mark.parametrize(
    ("wrap", "pick"),
    [
        (lambda y: {"h": y, "count": 3}, lambda out: out["h"]),
        (lambda y: [y, None], lambda out: out[0]),
        (lambda y: (0, {"deep": [y]}), lambda out: out[1]["deep"][0]),
        (Record, lambda out: out.hidden),
        (lambda y: Pair(y, None), lambda out: out.hidden),
    ],
    ids=["dict", "list", "nested", "dataclass", "namedtuple"],
)
@pytest.mark.parametrize("function", [guarded_too_late, root_of_square])
def test_a_module_that_wraps_its_output_is_named_all_the_same(
    run: Run, note: Note, wrap: Any, pick: Any, function: Function
) -> None:
    finding = stop(run, Carry(Apply(function, wrap), pick), [make_batch()])
    assert finding.layer == "net.op"
    note("a03", "op", f"{finding.layer}: {finding.summary}")


@pytest.mark.parametrize(("steps", "bad", "width"), [(6, 3, 4), (9, 8, 7), (4, 0, 4)])
def test_of_a_cell_called_many_times_the_bad_call_is_told(
    run: Run, note: Note, steps: int, bad: int, width: int
) -> None:
    finding = stop(run, Recurrent(steps, bad, width), [make_batch()])
    assert finding.layer == "net.cell"
    assert finding.evidence["call index"] == f"{bad} of {steps}"
    assert f"call index {bad} of {steps}" in finding.summary
    note("a05", "cell, the bad call's index", finding.summary)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("function", [guarded_too_late, entropy])
def test_a_fault_inside_a_checkpointed_block_is_found(
    run: Run, note: Note, reentrant: bool, function: Function
) -> None:
    net = Checkpointed(function, reentrant=reentrant)
    with torch.no_grad():
        net.get_parameter("block.layer.bias")[0] = -50.0
    finding = stop(run, net, [make_batch()])
    assert finding.layer == "net.block.op"
    note("a07", "block.op", f"{finding.layer}: {finding.summary}")


@pytest.mark.parametrize("function", [root_of_square, guarded_too_late, entropy])
def test_a_bare_function_belongs_to_the_module_around_it_between_its_children(
    run: Run, note: Note, function: Function
) -> None:
    net = Stack(function)
    with torch.no_grad():
        net.block.a.bias[0] = -50.0
    finding = stop(run, net, [make_batch()])
    assert finding.layer == "net.block"
    assert "after net.block.a, before net.block.b" in finding.summary
    note("b27", "block, after block.a, before block.b", f"{finding.layer}: {finding.summary}")
