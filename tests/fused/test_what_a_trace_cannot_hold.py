"""A forward that depends on more than its inputs computes the same after a trial as before it."""

import copy
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import run_trial
from tests.fused.nets import CALLS, Chains

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(5))
Y = torch.arange(6) % 3
PAIR = "linear → relu"
Way = Callable[[Any, Tensor], Tensor]
Change = Callable[[Any], object]


class Body(nn.Module):
    """A pair that can be fused, and a way through it of the test's choice."""

    def __init__(self, way: Way, **held: Any) -> None:
        super().__init__()
        self.up, self.act, self.head = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
        self.way = way
        for name, value in held.items():
            if isinstance(value, Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def hidden(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.up(x))
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def outcome(model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    loss = F.cross_entropy(model(X), Y)
    loss.backward()
    grads = [each.grad for each in model.parameters() if each.grad is not None]
    return [loss.detach(), *grads, *(each.clone() for each in model.buffers())]


def swapped(way: Way, change: Change = id, **held: Any) -> tuple[Any, Any, int]:
    """Give a model after a trial and its stock twin, both changed and run, and the fused calls."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), Body(way, **held))
    wardrobe = Wardrobe()
    wardrobe.wear(run_trial(model, [Chains()], (X, Y), mode="force").kept)
    stock = copy.deepcopy(model)
    for each in stock.modules():
        vars(each).pop("forward", None)
    change(model[1])
    change(stock[1])
    CALLS.clear()
    own = outcome(model)
    fused = CALLS.count(PAIR)
    torch.testing.assert_close(own, outcome(stock), rtol=1e-4, atol=1e-6)
    wardrobe.take_off()
    return model[1], stock[1], fused


def as_a_number(self: Any, x: Tensor) -> Tensor:
    return self.head(self.hidden(x)) * self.heat.item()


def as_a_flag(self: Any, x: Tensor) -> Tensor:
    y = self.hidden(x)
    return self.head(y * 2 if self.heat > 1 else y)


def in_a_list(self: Any, x: Tensor) -> Tensor:
    return self.head(self.hidden(x)) * self.heat.tolist()


def counted(self: Any, x: Tensor) -> Tensor:
    self.heat += 1
    return self.head(self.hidden(x))


def hotter(self: Any) -> None:
    self.heat.fill_(3.0)


@pytest.mark.parametrize("way", [as_a_number, as_a_flag, in_a_list, counted])
def test_a_buffer_that_python_reads_or_counts_stays_alive(way: Way) -> None:
    assert swapped(way, hotter, heat=torch.tensor(1.0))[2] == 0


class Bounded(torch.autograd.Function):
    """Bounds what flows back, and gives what it is given."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(_ctx: Any, *grads: Any) -> Any:
        return grads[0].clamp(-0.1, 0.1)


class Formed(Bounded):
    """The same in the newer form."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


@pytest.mark.parametrize("bounded", [Bounded.apply, Formed.apply])
def test_a_backward_of_its_own_is_kept_where_the_trial_saw_no_effect_of_it(bounded: Any) -> None:
    def steeper(self: Any) -> None:
        self.head.weight.data.mul_(100)

    assert swapped(lambda self, x: self.head(bounded(self.hidden(x))), steeper)[2] == 0


def of_a_type(self: Any, x: Tensor) -> Tensor:
    y = self.hidden(x)
    if isinstance(y, Tensor) and y.max() > 1e3:
        y = y * 0
    return self.head(y)


def test_a_forward_that_asks_for_a_type_gets_the_value_s() -> None:
    assert swapped(of_a_type, lambda self: self.up.weight.data.mul_(1e4))[2] == 0
    assert isinstance(X, Tensor)


class Slotted:
    """Holds a number without a dictionary."""

    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0


class Schedule:
    """Is called for a number."""

    scale = 1.0

    def __init__(self) -> None:
        self.factors = [1.0]

    def __call__(self) -> float:
        return self.factors[0] * self.scale


def times(scale: Callable[[Any], float]) -> Way:
    return lambda self, x: self.head(self.hidden(x)) * scale(self.held)


HELD: list[tuple[Any, Callable[[Any], Any], Change]] = [
    (SimpleNamespace(inner=SimpleNamespace(scale=1.0)), lambda held: held.inner.scale,
     lambda self: setattr(self.held.inner, "scale", 3.0)),
    ({"a": {"b": 1.0}}, lambda held: held["a"]["b"], lambda self: self.held["a"].update(b=3.0)),
    ([[1.0]], lambda held: held[0][0], lambda self: self.held[0].append(self.held[0].pop() + 2)),
    (Slotted(), lambda held: held.scale, lambda self: setattr(self.held, "scale", 3.0)),
    (np.ones(2), lambda held: float(held[0]), lambda self: self.held.fill(3.0)),
    (Schedule(), lambda held: held(), lambda self: self.held.factors.insert(0, 3.0)),
]  # fmt: skip


@pytest.mark.parametrize(("held", "scale", "change"), HELD)
def test_a_number_deep_inside_of_what_a_module_holds_is_looked_at(
    held: Any, scale: Callable[[Any], float], change: Change
) -> None:
    assert swapped(times(scale), held=copy.deepcopy(held))[2] == 1
    assert swapped(times(scale), change, held=copy.deepcopy(held))[2] == 0


def test_what_a_function_closes_over_is_looked_at() -> None:
    factors = [1.0]
    way: Way = lambda self, x: self.head(self.hidden(x)) * factors[0]  # noqa: E731
    assert swapped(way)[2] == 1
    assert swapped(way, lambda _self: factors.insert(0, 3.0))[2] == 0


SETTINGS = {"scale": 1.0}


def by_a_global(self: Any, x: Tensor) -> Tensor:
    return self.head(self.hidden(x)) * SETTINGS["scale"]


def test_a_global_that_a_forward_reads_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert swapped(by_a_global)[2] == 1

    def change(_self: Any) -> None:
        monkeypatch.setitem(SETTINGS, "scale", 3.0)

    assert swapped(by_a_global, change)[2] == 0


def scaled(y: Tensor) -> Tensor:
    return y * SETTINGS["scale"]


def by_a_function_beside_it(self: Any, x: Tensor) -> Tensor:
    return scaled(self.head(self.hidden(x)))


def test_a_global_that_a_function_beside_it_reads_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert swapped(by_a_function_beside_it)[2] == 1

    def change(_self: Any) -> None:
        monkeypatch.setitem(SETTINGS, "scale", 3.0)

    assert swapped(by_a_function_beside_it, change)[2] == 0


@dataclasses.dataclass
class World:
    """Holds more than can be looked at."""

    scale: float = 1.0
    inner: Any = None


def test_what_holds_a_world_is_refused() -> None:
    world = World()
    world.inner = world
    assert swapped(times(lambda held: held.scale), held=world)[2] == 0


def kept_in_a_dictionary(self: Any, x: Tensor) -> Tensor:
    y = self.hidden(x)
    self.held["y"] = y.detach()
    return self.head(y)


def kept_in_a_list(self: Any, x: Tensor) -> Tensor:
    y = self.hidden(x)
    self.held.clear()
    self.held.append(y.detach())
    return self.head(y)


@pytest.mark.parametrize(("way", "held"), [(kept_in_a_dictionary, {"y": X}), (kept_in_a_list, [X])])
def test_what_a_forward_leaves_behind_for_others_is_of_its_last_call(way: Way, held: Any) -> None:
    own, stock, fused = swapped(way, held=held)
    assert fused == 0
    place: Any = "y" if isinstance(held, dict) else 0
    left, other = own.held[place], stock.held[place]
    assert torch.equal(left, other)


class Given(nn.Module):
    """Hands its body one object, or a mask less."""

    def __init__(self, make: Callable[..., Any]) -> None:
        super().__init__()
        self.make, self.mask = make, torch.full((6, 1), 2.0)
        self.body = Body(lambda own, given: own.head(masked(own, given)))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.make(x=x, mask=self.mask))


def masked(self: Any, given: Any) -> Tensor:
    y = self.hidden(given.x)
    return y if given.mask is None else y * given.mask


@dataclasses.dataclass
class Inputs:
    """What a forward is given."""

    x: Tensor
    mask: Tensor | None


@pytest.mark.parametrize("make", [Inputs, SimpleNamespace])
def test_what_an_object_among_the_inputs_lacks_is_seen(make: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model: Any = Given(make)
    wardrobe = Wardrobe()
    wardrobe.wear(run_trial(model, [Chains()], (X, Y), mode="force").kept)
    CALLS.clear()
    outcome(model)
    assert CALLS == [PAIR]
    model.mask = None
    outcome(model)
    assert CALLS == [PAIR]
    wardrobe.take_off()


def tripled(name: str) -> Change:
    def change(self: Any) -> None:
        child = getattr(self, name)
        child.forward = lambda x: type(child).forward(child, x) * 3

    return change


@pytest.mark.parametrize("name", ["up", "act"])
def test_a_forward_that_a_part_of_a_chain_was_given_later_runs(name: str) -> None:
    way: Way = lambda self, x: self.head(self.hidden(x))  # noqa: E731
    assert swapped(way)[2] == 1
    assert swapped(way, tripled(name))[2] == 0


def frozen(self: Any) -> None:
    self.up.weight.requires_grad_(False)


def by_what_trains(self: Any, x: Tensor) -> Tensor:
    y = self.hidden(x)
    return self.head(y * 2 if self.up.weight.requires_grad else y)


def test_what_is_asked_of_a_weight_is_asked_again() -> None:
    assert swapped(by_what_trains)[2] == 1
    assert swapped(by_what_trains, frozen)[2] == 0
    assert swapped(lambda self, x: self.head(self.hidden(x)), frozen)[2] == 1
