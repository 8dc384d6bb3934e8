"""LayerNorm and RMSNorm as torch sees them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.fused import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from gradwatch.kernels import norm as _  # noqa: F401  registers the operations

FP32, BF16 = torch.float32, torch.bfloat16
X, W, MEAN, RSTD = torch.randn(5, 8), torch.randn(8), torch.randn(5), torch.rand(5)

CALLS: dict[str, tuple[Any, ...]] = {
    "norm_forward": (X, None, W, W, 8, 1e-5, True, BF16),
    "norm_forward with residual": (X, X + 1, W, None, 8, 1e-5, True, FP32),
    "norm_backward": (X, X, W, MEAN, RSTD, None, 8, True, [True, True, True], FP32),
    "norm_backward of the input": (X, X, W, MEAN, RSTD, X, 8, True, [True, False, False], FP32),
}


def add_stock(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return F.layer_norm(x + r, (4,), w), x + r


def add_stock_rms(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return F.rms_norm(x + r, (4,), w), x + r


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Tensor, ...]]] = {
    "layer_norm": (
        lambda x, w, b: layer_norm(x, (4,), w, b),
        lambda x, w, b: F.layer_norm(x, (4,), w, b),
        (torch.randn(2, 4), torch.randn(4), torch.randn(4)),
    ),
    "rms_norm": (
        lambda x, w: rms_norm(x, (4,), w),
        lambda x, w: F.rms_norm(x, (4,), w),
        (torch.randn(2, 4), torch.randn(4)),
    ),
    "add_layer_norm": (
        lambda x, r, w: add_layer_norm(x, r, (4,), w),
        add_stock,
        (torch.randn(2, 4), torch.randn(2, 4), torch.randn(4)),
    ),
    "add_rms_norm": (
        lambda x, r, w: add_rms_norm(x, r, (4,), w),
        add_stock_rms,
        (torch.randn(2, 4), torch.randn(2, 4), torch.randn(4)),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_schema_fake_and_trace_fit_the_operation(
    call: str, check_registration: Callable[..., None]
) -> None:
    check_registration(call.split(maxsplit=1)[0], CALLS[call])


@pytest.mark.parametrize("name", PAIRS)
def test_gradients_and_their_gradients_are_those_of_the_forward(
    name: str, check_gradients: Callable[..., None]
) -> None:
    ours, _stock, inputs = PAIRS[name]
    check_gradients(ours, inputs)


@pytest.mark.parametrize("name", PAIRS)
def test_a_gradient_penalty_has_the_stock_gradient(
    name: str, check_penalty: Callable[..., None]
) -> None:
    check_penalty(*PAIRS[name])
