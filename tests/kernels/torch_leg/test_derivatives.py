"""Every fused function as autograd sees it: its gradients, and gradients of these."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.fused import (
    add_layer_norm,
    add_rms_norm,
    batch_norm,
    batch_norm_add_relu,
    batch_norm_relu,
    cross_entropy,
    geglu,
    group_norm,
    group_norm_silu,
    layer_norm,
    linear_gelu,
    linear_relu,
    rms_norm,
    swiglu,
    swiglu_packed,
)
from gradwatch.kernels.dropout import dropout

Function = Callable[..., Any]
Inputs = tuple[Tensor, ...]

# Kernels compute in float32: its differences are good to about one part in a thousand.
TOLERANCE: dict[str, Any] = {"eps": 1e-2, "atol": 1e-2, "rtol": 1e-2}
# Gates far enough from 0 that a difference does not cross it.
SIGNS = (torch.rand(3, 4) > 0.5) * 2.0 - 1.0
RESIDUALS = 3.0 * torch.tensor([-1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0]).view(4, 2)
AFFINE = (torch.rand(2) + 0.5, 0.1 * torch.randn(2))
STATISTICS = (torch.randn(2), torch.rand(2) + 0.5)
TARGET, SEED = torch.tensor([0, 3, -100]), torch.tensor([7])
SMOOTHED: dict[str, Any] = {"label_smoothing": 0.1, "weight": torch.rand(4)}


def normal(*shapes: tuple[int, ...]) -> Inputs:
    return tuple(torch.randn(shape) for shape in shapes)


def add_stock(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return F.layer_norm(x + r, (4,), w), x + r


def add_stock_rms(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return F.rms_norm(x + r, (4,), w), x + r


def halved(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def dropped(x: Tensor, b: Tensor, r: Tensor) -> Tensor:
    # Of an activation behind it: dropout itself is linear, and its penalty says nothing.
    return dropout(x, 0.5, b, residual=r, seed=SEED).tanh()


def dropped_plainly(x: Tensor, b: Tensor, r: Tensor) -> Tensor:
    mask = dropout(torch.ones_like(x), 0.5, seed=SEED).detach()
    return ((x + b) * mask + r).tanh()


# Name → ours, the stock one and their inputs.
PAIRS: dict[str, tuple[Function, Function, Inputs]] = {
    "layer_norm": (
        lambda x, w, b: layer_norm(x, (4,), w, b),
        lambda x, w, b: F.layer_norm(x, (4,), w, b),
        normal((2, 4), (4,), (4,)),
    ),
    "rms_norm": (
        lambda x, w: rms_norm(x, (4,), w),
        lambda x, w: F.rms_norm(x, (4,), w),
        normal((2, 4), (4,)),
    ),
    "add_layer_norm": (
        lambda x, r, w: add_layer_norm(x, r, (4,), w),
        add_stock,
        normal((2, 4), (2, 4), (4,)),
    ),
    "add_rms_norm": (
        lambda x, r, w: add_rms_norm(x, r, (4,), w),
        add_stock_rms,
        normal((2, 4), (2, 4), (4,)),
    ),
    "group_norm_silu": (
        lambda x, w, b: group_norm_silu(x, 2, w, b),
        lambda x, w, b: F.silu(F.group_norm(x, 2, w, b)),
        normal((1, 4, 2), (4,), (4,)),
    ),
    "batch_norm outside training": (
        lambda x, w, b: batch_norm(x, *STATISTICS, w, b),
        lambda x, w, b: F.batch_norm(x, *STATISTICS, w, b),
        (torch.randn(4, 2), *AFFINE),
    ),
    "batch_norm_add_relu": (
        lambda x, r, w, b: batch_norm_add_relu(x, r, None, None, w, b, training=True),
        lambda x, r, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True) + r),
        (torch.randn(4, 2), RESIDUALS, *AFFINE),
    ),
    "linear_relu": (
        linear_relu,
        lambda x, w, b: F.relu(F.linear(x, w, b)),
        (SIGNS, torch.eye(4) * 2, torch.full((4,), 0.5)),
    ),
    "linear_gelu": (
        linear_gelu,
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        normal((3, 4), (2, 4), (2,)),
    ),
    "linear_gelu tanh": (
        lambda x, w, b: linear_gelu(x, w, b, approximate="tanh"),
        lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
        normal((3, 4), (2, 4), (2,)),
    ),
    "swiglu": (swiglu, lambda g, u: F.silu(g) * u, normal((2, 4), (2, 4))),
    "geglu": (geglu, lambda g, u: F.gelu(g) * u, normal((2, 4), (2, 4))),
    "geglu tanh": (
        lambda g, u: geglu(g, u, approximate="tanh"),
        lambda g, u: F.gelu(g, approximate="tanh") * u,
        normal((2, 4), (2, 4)),
    ),
    "swiglu packed": (swiglu_packed, halved, normal((2, 8))),
    "cross_entropy": (
        lambda x: cross_entropy(x, TARGET, **SMOOTHED),
        lambda x: F.cross_entropy(x, TARGET, **SMOOTHED),
        normal((3, 4)),
    ),
    "cross_entropy of each row": (
        lambda x: cross_entropy(x, TARGET, reduction="none", **SMOOTHED),
        lambda x: F.cross_entropy(x, TARGET, reduction="none", **SMOOTHED),
        normal((3, 4)),
    ),
    "dropout": (dropped, dropped_plainly, normal((1, 2), (2,), (1, 2))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_gradients_and_their_gradients_are_those_of_the_forward(name: str) -> None:
    ours, _stock, inputs = PAIRS[name]
    leaves = tuple(t.detach().clone().requires_grad_() for t in inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Input #.* is not a double")
        assert torch.autograd.gradcheck(ours, leaves, **TOLERANCE)
        assert torch.autograd.gradgradcheck(ours, leaves, **TOLERANCE)


def penalised(function: Function, inputs: Inputs) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = function(*leaves)
    outputs = out if isinstance(out, tuple) else (out,)
    squares = [o.square().sum() for o in outputs]
    (slope,) = torch.autograd.grad(squares, leaves[:1], create_graph=True)
    (slope.norm() - 1).square().backward()
    return [t.grad for t in leaves if t.grad is not None]


def check_penalty(ours: Function, stock: Function, inputs: Inputs) -> None:
    torch.testing.assert_close(
        penalised(ours, inputs), penalised(stock, inputs), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", PAIRS)
def test_a_gradient_penalty_has_the_stock_gradient(name: str) -> None:
    check_penalty(*PAIRS[name])


# Of images: ours and the stock one, given x, a residual, weight and bias.
IMAGES: dict[str, tuple[Function, Function]] = {
    "batch_norm_relu": (
        lambda x, _r, w, b: batch_norm_relu(x, None, None, w, b, training=True),
        lambda x, _r, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True)),
    ),
    "batch_norm_add_relu": (
        lambda x, r, w, b: batch_norm_add_relu(x, r, None, None, w, b, training=True),
        lambda x, r, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True) + r),
    ),
    "group_norm": (
        lambda x, _r, w, b: group_norm(x, 3, w, b),
        lambda x, _r, w, b: F.group_norm(x, 3, w, b),
    ),
    "group_norm_silu": (
        lambda x, _r, w, b: group_norm_silu(x, 3, w, b),
        lambda x, _r, w, b: F.silu(F.group_norm(x, 3, w, b)),
    ),
}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", IMAGES)
def test_a_gradient_penalty_over_images_has_the_stock_gradient(
    name: str, memory_format: torch.memory_format
) -> None:
    x, r = torch.randn(2, 4, 12, 3, 3).unbind(0)
    x, r = (t.contiguous(memory_format=memory_format) for t in (x, r))
    check_penalty(*IMAGES[name], (x, r, torch.randn(12), torch.randn(12)))
