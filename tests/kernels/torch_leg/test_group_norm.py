"""GroupNorm and SiLU as torch sees them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.fused import group_norm, group_norm_silu
from gradwatch.kernels import group_norm as _  # noqa: F401  registers the operations

FP32, BF16 = torch.float32, torch.bfloat16
X = torch.randn(2, 4, 3, 5)
LAST, SLICED = X.contiguous(memory_format=torch.channels_last), torch.randn(2, 4, 3, 10)[..., ::2]
W, MEAN, RSTD = torch.randn(4), torch.randn(4), torch.rand(4)
ALL = [True] * 3

CALLS: dict[str, tuple[Any, ...]] = {
    "group_norm_forward": (X, W, W, 2, 1e-5, True, BF16),
    "group_norm_forward channels last": (LAST, None, W, 2, 1e-5, False, FP32),
    "group_norm_forward sliced": (SLICED, W, None, 2, 1e-5, True, FP32),
    "group_norm_forward in one pass": (torch.randn(1, 4, 16, 16), W, W, 2, 1e-5, True, FP32),
    "group_norm_backward": (X, X, W, W, MEAN, RSTD, 2, True, ALL),
    "group_norm_backward channels last": (X, LAST, W, W, MEAN, RSTD, 2, True, ALL),
    "group_norm_backward of the input": (
        *(X, X, None, None, MEAN, RSTD, 2, False),
        [True, False, False],
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_schema_fake_and_trace_fit_the_operation(
    call: str, check_registration: Callable[..., None]
) -> None:
    check_registration(call.split(maxsplit=1)[0], CALLS[call])


def test_gradients_and_their_gradients_are_those_of_the_forward(
    check_gradients: Callable[..., None],
) -> None:
    check_gradients(
        lambda x, w, b: group_norm_silu(x, 2, w, b),
        (torch.randn(1, 4, 2), torch.randn(4), torch.randn(4)),
    )


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_gradient_penalty_has_the_stock_gradient(
    memory_format: torch.memory_format, check_penalty: Callable[..., None]
) -> None:
    x = torch.randn(2, 6, 3, 3).contiguous(memory_format=memory_format)
    inputs = (x, torch.randn(6), torch.randn(6))

    def stock(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.group_norm(x, 3, w, b)

    check_penalty(lambda x, w, b: group_norm(x, 3, w, b), stock, inputs)
    check_penalty(lambda x, w, b: group_norm_silu(x, 3, w, b), lambda *a: F.silu(stock(*a)), inputs)
