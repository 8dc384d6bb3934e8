"""A replay leaves no mark: not on the model, its attributes, gradients, hooks or generators."""

import copy
import pickle
import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradwatch.non_finite.blame import NO_REPLAY, NOT_RESTORABLE, REPRODUCIBLE, Blame
from gradwatch.non_finite.capture import hold
from gradwatch.non_finite.program import ClosureProgram, Suspects
from gradwatch.non_finite.replay import investigate

Examine = Callable[..., Blame]


class Meter:
    """An average a user keeps in an object of their own."""

    def __init__(self) -> None:
        self.sum, self.values, self.state = 0.0, [0.0], torch.zeros(2)


class Busy(nn.Module):
    """A module that changes everything a module can hold, at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.lin = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4)
        self.count, self.seen, self.recent = 0, [torch.zeros(1)], deque([1, 2], maxlen=2)
        self.by_name: dict[str, list[int]] = defaultdict(list)
        self.meter, self.kinds, self.array = Meter(), {"a"}, np.zeros(3)
        self.generator = torch.Generator().manual_seed(5)
        self.dice, self.numpy_dice = random.Random(5), np.random.default_rng(5)  # noqa: S311
        self.hidden = [nn.BatchNorm1d(4)]
        self.average: Tensor
        self.register_buffer("average", torch.zeros(4))
        self.target = nn.Parameter(torch.ones(4), requires_grad=False)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.seen.append(x.detach())
        self.seen[0].add_(1)
        self.recent.append(self.count)
        self.by_name[f"call {self.count}"].append(self.count)
        self.meter.sum += 1.0
        self.meter.values.append(1.0)
        self.meter.state.add_(1)
        self.kinds.add(str(self.count))
        self.array += self.numpy_dice.random() + self.dice.random()
        self.average = self.average * 0.9 + x.detach().mean(0) * 0.1
        self.last = self.hidden[0](self.norm(self.drop(self.lin(x))))
        noise = torch.rand(4, generator=self.generator) + random.random() + np.random.rand()  # noqa: NPY002, S311
        with torch.no_grad():
            self.target.lerp_(self.lin.bias, 0.1)
        assert self.last is not None
        return torch.sqrt((self.last * (self.last > 0)) ** 2) * noise


FREEZE: tuple[tuple[type | tuple[type, ...], Callable[[Any], object]], ...] = (
    (Tensor, lambda value: (id(value), value.requires_grad, value.detach().flatten().tolist())),
    (torch.Generator, lambda value: value.get_state().tolist()),
    (random.Random, lambda value: value.getstate()),
    (np.random.Generator, lambda value: copy.deepcopy(value.bit_generator.state)),
    (np.ndarray, lambda value: value.tolist()),
    (dict, lambda value: {key: freeze(inner) for key, inner in value.items()}),
    ((list, tuple, deque), lambda value: [freeze(inner) for inner in value]),
    ((nn.Module, Meter), lambda value: freeze(vars(value))),
    (object, copy.copy),
)


def freeze(value: object) -> object:
    """Give everything reachable from a module as comparable values, identity included."""
    return next(take(value) for kinds, take in FREEZE if isinstance(value, kinds))


def draw() -> tuple[float, ...]:
    return (torch.rand(1).item(), random.random(), float(np.random.rand()))  # noqa: NPY002, S311


def squares(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda x: cast("Tensor", model(x)).pow(2).mean()


def logs(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda x: cast("Tensor", model(x)).log().sum()


def test_everything_a_module_holds_is_bit_for_bit_as_before() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), Busy(), nn.Linear(4, 3)), torch.randn(6, 4)
    run = squares(model)
    held = hold(x)
    loss = run(x)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    before, state = freeze(model), torch.get_rng_state()
    blame = investigate(model, held, ClosureProgram(run, held.batch), Suspects(loss=loss.detach()))
    after = freeze(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert after == before
    assert blame.place == "1"


def test_state_moved_by_the_failing_step_itself_shows_as_another_loss(examine: Examine) -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.steps = nn.Linear(4, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            out: Tensor = self.lin(x)
            return torch.sqrt((out.relu() * 0) ** 2) * 0 + out * self.steps

    model = Growing()
    blame = examine(model, lambda x: model(x).pow(2).mean(), torch.randn(5, 4))
    assert blame.verdict == NOT_RESTORABLE
    assert blame.place != ""


def test_a_batch_edited_in_place_is_named_and_not_edited_again(examine: Examine) -> None:
    model, x = nn.Linear(4, 4), torch.rand(5, 4) + 1

    def run(batch: Tensor) -> Tensor:
        out: Tensor = model(batch.mul_(3))
        return (out * 0).log().sum() + batch.sum()

    blame = examine(model, run, x)
    assert blame.verdict in {NOT_RESTORABLE, REPRODUCIBLE}
    assert torch.all(x < 6.01)


def test_the_same_generators_go_on_after_a_replay() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    run = logs(model)
    held = hold(torch.randn(3, 4))
    torch.get_rng_state()
    state = hold(None)
    expected = draw()
    state.restore_rng()
    investigate(model, held, ClosureProgram(run, held.batch), Suspects())
    assert draw() == expected


def count_hooks(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


@pytest.mark.parametrize("error", [ValueError("no such thing"), torch.OutOfMemoryError("too big")])
def test_an_error_in_the_replay_gives_the_answer_from_gradients_and_no_mark(
    error: Exception,
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    def run(batch: Tensor) -> Tensor:
        model(batch)
        raise error

    held = hold(torch.randn(5, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    suspects = Suspects(parameters=["0.weight", "2.weight", "1.weight"], order=["0", "1", "2"])
    blame = investigate(model, held, ClosureProgram(run, held.batch), suspects)
    assert blame.place == "2"
    assert blame.verdict == f"{NO_REPLAY}: {type(error).__name__}: {error}"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert count_hooks(model) == 0
    assert model.training


def test_a_model_pickles_and_copies_after_a_replay(examine: Examine) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    examine(model, lambda x: model(x).log().sum(), torch.randn(5, 4))
    assert count_hooks(model) == 0
    assert pickle.loads(pickle.dumps(model)).state_dict().keys() == model.state_dict().keys()  # noqa: S301
    copy.deepcopy(model)


def test_an_optimizer_that_steps_inside_the_backward_does_not_step_again() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    steps: list[int] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: steps.append(1))
    run = logs(model)
    held = hold(torch.randn(5, 4))
    investigate(model, held, ClosureProgram(run, held.batch), Suspects())
    assert steps == []
    run(held.batch).backward()
    assert len(steps) == 4
