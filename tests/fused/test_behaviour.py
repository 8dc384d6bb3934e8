"""Norms and activations are known by what they compute; what only looks like one is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.behaviour import NormForm, recognise_activation, recognise_norm


class ByHand(nn.Module):
    """A norm in Python: a function of the input and of itself."""

    def __init__(
        self, compute: Callable[[nn.Module, Tensor], Tensor], *, bias: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.bias = nn.Parameter(torch.zeros(6)) if bias else None
        self.eps = 1e-6
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


def rms(self: Any, x: Tensor) -> Tensor:
    y = x.float()
    return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rms_of_one_plus_weight(self: Any, x: Tensor) -> Tensor:
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (y * (1 + self.weight.float())).type_as(x)


def by_steps(self: Any, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return (
        self.weight * centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() + self.bias
    )


def channels_first(self: Any, x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    y = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
    return self.weight[:, None, None] * y + self.bias[:, None, None]


@pytest.mark.parametrize(
    ("module", "x", "form"),
    [
        (ByHand(rms), torch.ones(2, 6), NormForm(False, 1e-6, weight="weight")),
        (
            ByHand(rms_of_one_plus_weight), torch.ones(2, 3, 6),
            NormForm(False, 1e-6, offset=1.0, weight="weight", promotes=False),
        ),
        (ByHand(by_steps, bias=True), torch.ones(2, 6),
         NormForm(True, 1e-6, weight="weight", bias="bias")),
        (ByHand(channels_first, bias=True), torch.ones(2, 6, 4, 4),
         NormForm(True, 1e-6, dim=1, weight="weight", bias="bias")),
        (ByHand(channels_first, bias=True), torch.ones(2, 6, 6, 6),
         NormForm(True, 1e-6, dim=1, weight="weight", bias="bias")),
    ],
    ids=["RMS", "of 1 + weight", "LayerNorm", "channels first", "as many columns as channels"],
)  # fmt: skip
def test_a_norm_written_by_hand_is_recognised(module: nn.Module, x: Tensor, form: NormForm) -> None:
    assert recognise_norm(module, x) == form


def over_the_batch(self: Any, x: Tensor) -> Tensor:
    return self.weight * x * torch.rsqrt(x.square().mean(0, keepdim=True) + 1e-6)


def without_a_mean(self: Any, x: Tensor) -> Tensor:
    return self.weight * x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def with_an_odd_epsilon(self: Any, x: Tensor) -> Tensor:
    return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 3e-6)


def epsilon_outside(self: Any, x: Tensor) -> Tensor:
    return self.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-6)


def clipped(self: Any, x: Tensor) -> Tensor:
    return rms(self, x).clamp(-2, 2)


def cut(self: Any, x: Tensor) -> Tensor:
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6).detach()
    return self.weight * x * scale


def only_in_training(self: Any, x: Tensor) -> Tensor:
    return rms(self, x) if self.training else self.weight * x


@pytest.mark.parametrize(
    "compute",
    [
        over_the_batch, without_a_mean, with_an_odd_epsilon, epsilon_outside, clipped, cut,
        only_in_training,
    ],
)  # fmt: skip
def test_what_only_looks_like_a_norm_is_not_taken_for_one(
    compute: Callable[[nn.Module, Tensor], Tensor],
) -> None:
    assert recognise_norm(ByHand(compute), torch.ones(2, 6)) is None


def test_recognising_leaves_module_and_random_numbers_alone() -> None:
    module, before = ByHand(rms), torch.get_rng_state()
    fired: list[int] = []
    module.register_forward_hook(lambda *_: fired.append(1))
    recognise_norm(module, torch.ones(2, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(module.weight, torch.ones(6))
    assert fired == []


class Sigmoid(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Nearly(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Stepped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy * torch.sigmoid(4 * ctx.saved_tensors[0])


class WithASlopeOfItsOwn(nn.Module):
    """ReLU by its values; what flows back is another function's."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Stepped.apply(x)  # type: ignore[no-untyped-call]
        return y


class Clipped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x).clamp(-10, 10)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.ReLU(inplace=True), "relu"),
        (nn.SiLU(inplace=True), "silu"),
        (nn.GELU("tanh"), "gelu_tanh"),
        (nn.ReLU6(), None),
        (nn.Hardtanh(0, 30), None),
        (Clipped(), None),
        (WithASlopeOfItsOwn(), None),
        (nn.GELU(), "gelu"),
        (Sigmoid(), "silu"),
        (Nearly(), None),
        (nn.LeakyReLU(1e-3), None),
        (nn.Dropout(0.5), None),
        (nn.Identity(), None),
        (nn.PReLU(), None),
        (nn.Softmax(-1), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_activation_is_known_by_its_values(module: nn.Module, name: str | None) -> None:
    assert recognise_activation(module) == name
