"""Faults people really write: layer, operation and call are named."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gradwatch.findings import LOSS
from gradwatch.non_finite.blame import REPRODUCIBLE, Blame

Examine = Callable[..., Blame]
Pair = namedtuple("Pair", "hidden extra")  # noqa: PYI024 - untyped ones are what people have


class Between(nn.Module):
    """An operation between two linear layers."""

    def __init__(self, op: nn.Module, pick: Callable[[Any], Tensor] = lambda out: out) -> None:
        super().__init__()
        self.enc, self.op, self.head = nn.Linear(4, 4), op, nn.Linear(4, 3)
        self.pick = pick

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.pick(self.op(self.enc(x))))
        return out


class Function(nn.Module):
    """A plain function as a module, its result perhaps wrapped."""

    def __init__(
        self, function: Callable[[Tensor], Tensor], wrap: Callable[[Tensor], Any] = lambda y: y
    ) -> None:
        super().__init__()
        self.function, self.wrap = function, wrap

    def forward(self, x: Tensor) -> object:
        return self.wrap(self.function(x))


@dataclass
class Output:
    hidden: Tensor
    extra: object = None


def guard_too_late(x: Tensor) -> Tensor:
    return torch.where(x > 0, torch.sqrt(x), x)


def root_of_square(x: Tensor) -> Tensor:
    return torch.sqrt((x * (x > 0)) ** 2)


def entropy(x: Tensor) -> Tensor:
    share = torch.relu(x)
    share = share / share.sum(-1, keepdim=True).clamp_min(1e-6)
    return -(share * share.log())


def standardise(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.std(0) + 1e-5)


def regression(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda batch: functional.mse_loss(model(batch[0]), batch[1])


def make_batch(size: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 4), torch.randn(size, 3)


@pytest.mark.parametrize(
    ("function", "phase", "operation"),
    [
        (entropy, "forward", "aten::log"),
        (root_of_square, "backward", "backward of aten::sqrt"),
        (guard_too_late, "backward", "backward of aten::sqrt"),
    ],
)
def test_the_module_with_the_faulty_operation_is_named(
    examine: Examine, function: Callable[[Tensor], Tensor], phase: str, operation: str
) -> None:
    model = Between(Function(function))
    with torch.no_grad():
        model.enc.bias[0] = -50.0
    blame = examine(model, regression(model), make_batch())
    assert (blame.place, blame.phase, blame.operation) == ("op", phase, operation)
    assert blame.verdict == REPRODUCIBLE
    assert "torch.sqrt" in blame.source or "share.log()" in blame.source


def test_a_guard_that_comes_too_late_gets_the_hint_to_mask_the_input(examine: Examine) -> None:
    model = Between(Function(guard_too_late))
    blame = examine(model, regression(model), make_batch())
    assert "mask the INPUT of aten::sqrt" in blame.hint


@pytest.mark.parametrize(
    ("wrap", "pick"),
    [
        (lambda y: {"hidden": y, "count": 3}, lambda out: out["hidden"]),
        (lambda y: [y, None], lambda out: out[0]),
        (Output, lambda out: out.hidden),
        (lambda y: Pair(y, None), lambda out: out.hidden),
    ],
    ids=["dict", "list", "dataclass", "namedtuple"],
)
def test_a_module_may_return_its_tensors_in_any_container(
    examine: Examine, wrap: Callable[[Tensor], Any], pick: Callable[[Any], Tensor]
) -> None:
    model = Between(Function(guard_too_late, wrap), pick)
    assert examine(model, regression(model), make_batch()).place == "op"


class Recurrent(nn.Module):
    """One cell called six times, at fault in one of the calls."""

    def __init__(self, calls: int = 6, bad_call: int = 3, *, again: bool = False) -> None:
        super().__init__()
        self.enc, self.cell, self.head = nn.Linear(4, 4), Between(nn.Identity()), nn.Linear(4, 3)
        self.cell.head = nn.Linear(4, 4)
        self.cell.op = Function(self.step)
        self.calls, self.bad_call, self.again, self.time = calls, bad_call, again, 0

    def step(self, x: Tensor) -> Tensor:
        return guard_too_late(x) if self.time == self.bad_call else torch.tanh(x)

    def once(self, h: Tensor, time: int) -> Tensor:
        self.time = time
        out: Tensor = self.cell(h)
        return out

    def forward(self, x: Tensor) -> Tensor:
        h = self.enc(x)
        for time in range(self.calls):
            h = (
                checkpoint(self.once, h, time, use_reentrant=False)
                if self.again
                else self.once(h, time)
            )
        out: Tensor = self.head(h)
        return out


@pytest.mark.parametrize("again", [False, True], ids=["plain", "checkpointed"])
def test_of_many_calls_of_one_module_the_faulty_one_is_named(examine: Examine, again: bool) -> None:
    model = Recurrent(again=again)
    blame = examine(model, regression(model), make_batch())
    assert (blame.place, blame.call, blame.calls) == ("cell.op", 3, 6)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.enc, self.head, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 3), reentrant
        self.block = nn.Sequential(nn.Linear(4, 4), Function(guard_too_late), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.block, self.enc(x), use_reentrant=self.reentrant)
        out: Tensor = self.head(h)
        return out


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_fault_inside_a_checkpointed_block_is_one_call_of_its_module(
    examine: Examine, reentrant: bool
) -> None:
    model = Checkpointed(reentrant=reentrant)
    blame = examine(model, regression(model), make_batch())
    assert (blame.place, blame.call, blame.calls) == ("block.1", 0, 1)
    assert blame.operation == "backward of aten::sqrt"


def test_a_nan_that_a_checkpointed_block_hands_on_is_a_fault_of_its_forward(
    examine: Examine,
) -> None:
    model = Checkpointed(reentrant=False)
    model.block[1] = Function(torch.sqrt)
    picked = lambda batch: torch.where(model(batch[0]).isnan(), 0.0, model(batch[0])).sum()  # noqa: E731
    blame = examine(model, picked, make_batch())
    assert (blame.place, blame.phase, blame.operation) == ("block.1", "forward", "aten::sqrt")


def test_a_fault_that_the_second_run_of_a_checkpoint_shows_is_looked_at_there(
    examine: Examine,
) -> None:
    model = Checkpointed(reentrant=False)
    model.block[1] = Function(lambda x: torch.exp(x.abs() * 1e4))
    blame = examine(model, regression(model), make_batch())
    assert (blame.place, blame.operation, blame.verdict) == ("block.1", "aten::exp", REPRODUCIBLE)
    assert blame.evidence["shape"] == "5×4"
    swallowed = lambda x: torch.tanh(torch.exp(x.abs() * 1e4))  # noqa: E731
    model.block[1] = Function(swallowed)
    blame = examine(model, regression(model), make_batch())
    assert (blame.place, blame.verdict) == ("block.1", REPRODUCIBLE)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(root_of_square(self.a(x)))
        return out


def test_a_bare_function_belongs_to_the_forward_it_stands_in_between_its_children(
    examine: Examine,
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 3))
    blame = examine(model, regression(model), make_batch())
    assert (blame.place, blame.after, blame.before) == ("1", "1.a", "1.b")


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        h = self.enc(x)
        h, _ = self.attn(h, h, h, key_padding_mask=pad, need_weights=True)
        out: Tensor = self.head(h)
        return out


def test_a_sample_that_is_all_padding_is_named_though_the_loss_leaves_it_out(
    examine: Examine,
) -> None:
    model, pad = Attentive(), torch.zeros(3, 5, dtype=torch.bool)
    pad[1] = True
    batch = (torch.randn(3, 5, 8), pad)
    blame = examine(model, lambda b: model(*b)[~b[1]].pow(2).mean(), batch)
    assert (blame.place, blame.operation, blame.samples) == ("attn", "aten::_softmax", (1,))
    assert blame.phase == "forward"


@pytest.mark.filterwarnings("ignore:std\\(\\). degrees of freedom is <= 0:UserWarning")
def test_one_sample_has_no_spread(examine: Examine) -> None:
    model = Between(Function(standardise))
    blame = examine(model, regression(model), make_batch(1))
    assert (blame.place, blame.operation, blame.batch_size) == ("op", "aten::std", 1)
    assert blame.batch_index == 7


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.proj, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.proj(torch.relu(self.enc(x)) * 3000)
        out: Tensor = self.head(torch.softmax(scores, -1))
        return out


def test_an_overflow_in_half_precision_is_blamed_and_not_the_softmax_after_it(
    examine: Examine,
) -> None:
    model = Narrow().half()
    with torch.no_grad():
        model.proj.weight.mul_(40)
    batch = (torch.randn(5, 8).half(), torch.randn(5, 3).half())
    blame = examine(model, regression(model), batch)
    assert (blame.place, blame.kind, blame.dtype) == ("proj", "Inf", "float16")
    assert 1000 < blame.max_input < 65504


def test_labels_that_are_all_ignored_are_a_fault_of_the_loss(examine: Examine) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = (torch.randn(5, 4), torch.full((5,), -100))
    blame = examine(model, lambda b: functional.cross_entropy(model(b[0]), b[1]), batch)
    assert (blame.place, blame.operation) == (LOSS, "aten::nll_loss_forward")
    assert blame.evidence["bad_parameters"] == 0
