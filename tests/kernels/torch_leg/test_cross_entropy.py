"""Softmax cross-entropy as torch sees it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from gradwatch.fused import cross_entropy
from gradwatch.kernels import cross_entropy as _  # noqa: F401  registers the operations

X, T, C = torch.randn(5, 8), torch.arange(5), torch.rand(8)
TARGET = torch.tensor([0, 3, -100])
OPTIONS: dict[str, Any] = {"label_smoothing": 0.1, "weight": torch.rand(4)}

CALLS: dict[str, tuple[Any, ...]] = {
    "cross_entropy_forward": (X, T, None, -100, 0.0),
    "cross_entropy_forward weighted": (X, T, C, -100, 0.1),
    "cross_entropy_backward": (torch.rand(()), X, T, torch.rand(5), None, -100, 0.0),
    "cross_entropy_backward weighted": (torch.rand(5), X, T, torch.rand(5), C, 3, 0.1),
}


@pytest.mark.parametrize("call", CALLS)
def test_schema_fake_and_trace_fit_the_operation(
    call: str, check_registration: Callable[..., None]
) -> None:
    check_registration(call.split(maxsplit=1)[0], CALLS[call])


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_and_their_gradients_are_those_of_the_forward(
    reduction: str, check_gradients: Callable[..., None]
) -> None:
    check_gradients(
        lambda x: cross_entropy(x, TARGET, reduction=reduction, **OPTIONS), (torch.randn(3, 4),)
    )


def test_a_gradient_penalty_has_the_stock_gradient(check_penalty: Callable[..., None]) -> None:
    check_penalty(
        lambda x: cross_entropy(x, TARGET, **OPTIONS),
        lambda x: F.cross_entropy(x, TARGET, **OPTIONS),
        (torch.randn(3, 4),),
    )
