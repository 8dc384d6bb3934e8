"""Odd models, well and broken, to be trained in a plain loop or under Lightning."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Optimizers = list[torch.optim.Optimizer]
Backward = Callable[..., None]
Step = Callable[[Any, Optimizers, Backward], None]
Forward = Callable[[Any, Tensor], Tensor]


class Odd(NamedTuple):
    """A model, how it is trained, and the parts that have an optimizer each."""

    model: nn.Module
    step: Step
    parts: list[nn.Module]


class Largest(torch.autograd.Function):
    """The largest four of each row, with their places, which have no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        values, places = x.topk(4, -1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        ctx.shape = x.shape
        return values, places

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return torch.zeros(ctx.shape).scatter(-1, places, grad)


class Sign(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad


class Reverse(torch.autograd.Function):
    """Reverse the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return -grad


class Doubled(torch.autograd.Function):
    """Double in place, and say so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * 2


class Lost(torch.autograd.Function):
    """Forget the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        return None


def through(function: Any, x: Tensor) -> Any:
    return function.apply(x)


class Two(nn.Module):
    """Two small networks, put together in some way."""

    def __init__(self, forward: Forward, last: int = 8) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.b = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, last))
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def usual(model: Any, optimizers: Optimizers, backward: Backward) -> None:
    model.zero_grad()
    backward(model(torch.randn(6, 8)).square().mean())
    for optimizer in optimizers:
        optimizer.step()


def one(forward: Forward, step: Step = usual) -> Odd:
    model = Two(forward)
    return Odd(model, step, [model])


def scattered(model: Any, x: Tensor) -> Tensor:
    values, places = through(Largest, model.a(x))
    out: Tensor = model.b(torch.zeros(6, 8).scatter(-1, places, values))
    return out


def rounded(model: Any, x: Tensor) -> Tensor:
    hidden = model.a(x)
    out: Tensor = model.b(hidden + (hidden.round() - hidden).detach())
    return out


def frozen() -> Odd:
    odd = one(lambda model, x: model.b(model.a(x)))
    odd.model.a.requires_grad_(False)
    return odd


def unrecorded(model: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = model.a(x)
    out: Tensor = model.b(hidden)
    return out


def taught(model: Any, x: Tensor) -> Tensor:
    out: Tensor = model.b(x + 0.1) - model.a(x).detach()
    return out


def teaching(model: Any, optimizers: Optimizers, backward: Backward) -> None:
    usual(model, optimizers, backward)
    with torch.no_grad():
        for slow, fast in zip(model.a.parameters(), model.b.parameters(), strict=True):
            slow.lerp_(fast, 0.1)


def teacher() -> Odd:
    model = Two(taught)
    model.a = copy.deepcopy(model.b)
    return Odd(model, teaching, [model.b])


def only_b(model: Any, optimizers: Optimizers, backward: Backward) -> None:
    model.zero_grad()
    backward(model(torch.randn(6, 8)).square().mean(), inputs=list(model.b.parameters()))
    optimizers[0].step()


def by_turns(model: Any, optimizers: Optimizers, backward: Backward) -> None:
    model.turn = 1 - getattr(model, "turn", 0)
    part = model.b if model.turn else model.a
    model.zero_grad()
    backward(model(torch.randn(6, 8)).square().mean(), inputs=list(part.parameters()))
    optimizers[0].step()


def penalised(model: Any, optimizers: Optimizers, backward: Backward) -> None:
    model.zero_grad()
    x = torch.randn(6, 8, requires_grad=True)
    loss = model(x).square().mean()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    backward(loss + slope.square().sum())
    optimizers[0].step()


def adversaries(model: Any, optimizers: Optimizers, backward: Backward) -> None:
    maker, judge = optimizers
    noise = torch.randn(6, 8)
    judge.zero_grad()
    made = F.softplus(model.b(model.a(noise).detach()))
    backward((made + F.softplus(-model.b(torch.randn(6, 8)))).mean())
    judge.step()
    maker.zero_grad()
    backward(F.softplus(-model(noise)).mean(), inputs=list(model.a.parameters()))
    maker.step()


def gan() -> Odd:
    model = Two(lambda model, x: model.b(model.a(x)), last=1)
    return Odd(model, adversaries, [model.a, model.b])


HEALTHY: dict[str, Callable[[], Odd]] = {
    "outputs without a gradient": lambda: one(scattered),
    "straight through": lambda: one(lambda own, x: own.b(through(Sign, own.a(x)))),
    "straight through, detached": lambda: one(rounded),
    "reversed": lambda: one(lambda own, x: own.b(through(Reverse, own.a(x)))),
    "in place and said so": lambda: one(lambda own, x: own.b(through(Doubled, own.a(x)))),
    "checkpointed": lambda: one(
        lambda own, x: own.b(checkpoint(own.a, x, use_reentrant=False))
    ),
    "checkpointed, reentrant": lambda: one(
        lambda own, x: own.b(checkpoint(own.a, x.requires_grad_(), use_reentrant=True))
    ),
    "frozen backbone": frozen,
    "backbone without an optimizer": lambda: Odd(
        model := Two(unrecorded), usual, [model.b]
    ),
    "detached teacher": teacher,
    "some inputs": lambda: one(lambda own, x: own.b(own.a(x)), only_b),
    "inputs by turns": lambda: one(lambda own, x: own.b(own.a(x)), by_turns),
    "gradient of a gradient": lambda: one(lambda own, x: own.b(own.a(x).sin()), penalised),
    "adversaries": gan,
}  # fmt: skip


def edited(model: Any, x: Tensor) -> Tensor:
    gate = model.a(x).sigmoid()
    out: Tensor = model.b(gate * 1)
    gate += 1
    return out + gate


BROKEN: dict[str, tuple[Callable[[], Odd], str, str]] = {
    "detached": (
        lambda: one(lambda own, x: own.b(own.a(x).detach())),
        "disconnected",
        "between a.2 and b.0",
    ),
    "a function that forgets": (
        lambda: one(lambda own, x: own.b(through(Lost, own.a(x)))),
        "disconnected",
        "between a.2 and b.0",
    ),
    "written over": (lambda: one(edited), "in_place_edit", "the backward of sigmoid"),
}


class ByHand(pl.LightningModule):
    """Train in the model's own way, optimizing by hand."""

    def __init__(self, odd: Odd) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self._odd = odd.model, odd

    def training_step(self, batch: Any, batch_idx: int) -> None:
        made: Any = self.optimizers()
        self._odd.step(self.model, made if isinstance(made, list) else [made], self.manual_backward)

    def configure_optimizers(self) -> Any:
        return [make(part) for part in self._odd.parts]


def make(part: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([own for own in part.parameters() if own.requires_grad], lr=0.05)
