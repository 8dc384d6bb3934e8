"""Losses that are a cross-entropy on a small, finite batch in training, and no other time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.loss_behaviour import recognise_loss

Compute = Callable[[Any, Tensor, Tensor], Tensor]


class Loss(nn.Module):
    """Computes what it is made with, from numbers of its own."""

    def __init__(self, compute: Compute, **own: Any) -> None:
        super().__init__()
        self.compute = compute
        vars(self).update(own)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.compute(self, x, target)


def rows(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.movedim(-1, 1), target, reduction="none")


def of_the_hardest(self: Any, x: Tensor, target: Tensor) -> Tensor:
    loss = rows(x, target).flatten()
    return loss.topk(min(self.most, len(loss)))[0].mean()


def of_a_hundred(_self: Any, x: Tensor, target: Tensor) -> Tensor:
    loss = rows(x, target).flatten()
    return loss.topk(min(100, len(loss)))[0].mean()


def of_the_first_places(_self: Any, x: Tensor, target: Tensor) -> Tensor:
    return (rows(x, target) * (torch.arange(target.shape[-1]) < 4)).mean()


def bounded(_self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.clamp(-1e9, 1e9), target)


def finite(_self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target).nan_to_num()


def skipped_unless_finite(_self: Any, x: Tensor, target: Tensor) -> Tensor:
    loss = F.cross_entropy(x, target)
    return loss if bool(loss.isfinite()) else x.nan_to_num().sum() * 0


def smoothed_with_gradients(self: Any, x: Tensor, target: Tensor) -> Tensor:
    share = self.smoothing if torch.is_grad_enabled() else 0.0
    return F.cross_entropy(x, target, label_smoothing=share)


def with_a_rare_class(_self: Any, x: Tensor, target: Tensor) -> Tensor:
    return (rows(x, target) * torch.where(target == 7, 2, 1)).mean()


@pytest.mark.parametrize(
    ("compute", "shape", "own"),
    [
        (of_the_hardest, (8, 5), {"most": 9000}),
        (of_the_hardest, (2, 6, 6, 5), {"most": 64}),
        (of_a_hundred, (8, 5), {}),
        (of_the_first_places, (3, 4, 5), {}),
        (bounded, (8, 5), {}),
        (finite, (8, 5), {}),
        (skipped_unless_finite, (8, 5), {}),
        (smoothed_with_gradients, (8, 5), {"smoothing": 0.1}),
        (with_a_rare_class, (8, 1000), {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_it_is_left_alone(compute: Compute, shape: tuple[int, ...], own: dict[str, Any]) -> None:
    live = torch.zeros(shape), torch.zeros(shape[:-1], dtype=torch.long)
    assert recognise_loss(Loss(compute, **own), *live) is None
    plain = Loss(lambda _self, x, target: rows(x, target).mean(), **own)
    assert recognise_loss(plain, *live) is not None
