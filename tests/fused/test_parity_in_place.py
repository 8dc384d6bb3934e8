"""A layer that works in place is judged by what it leaves, and told truly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.observe import half_now
from gradwatch.fused.operation import Call, Operation
from gradwatch.fused.parity import check
from gradwatch.non_finite.rng import RandomState
from tests.fused.lab import Offers, reason_of, run_trial


def on_the_spot(self: nn.ReLU, x: Tensor) -> Tensor:
    return x.relu_()


def beside(self: nn.ReLU, x: Tensor) -> Tensor:
    return F.relu(x)


def on_the_spot_and_wrong(self: nn.ReLU, x: Tensor) -> Tensor:
    y = F.relu(x)
    with torch.no_grad():
        x.copy_(y * 1.01)
    return y


def forward_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(self: nn.ReLU, x: Tensor) -> Tensor:
        return function(self, x)

    return forward


@pytest.mark.parametrize("trains", [True, False], ids=["trained input", "data"])
@pytest.mark.parametrize(
    ("stock", "fused", "reason"),
    [
        (on_the_spot, on_the_spot, ""),
        (on_the_spot, beside, "it leaves its input as it is, where the stock layer works in place"),
        (beside, on_the_spot, "it writes into its input"),
        (beside, beside, ""),
        (on_the_spot, on_the_spot_and_wrong, "its input is 1.0e-02 off, the stock one 0.0e+00"),
    ],
)
def test_what_is_left_of_an_input_is_compared(
    stock: Callable[..., Tensor], fused: Callable[..., Tensor], reason: str, trains: bool
) -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_(trains)
    gradients = (torch.ones(6, 4),) if trains else (None,)
    call = Call((x,), {}, gradients, RandomState.take(), half_now("cpu"))
    operation = Operation("ReLU", ("",), stock, forward_of(fused))
    assert check(operation, nn.ReLU(), call, 20.0).reason == reason
    assert (x.detach() < 0).any()


@pytest.mark.parametrize(
    ("fused", "verdict", "reason"),
    [
        (on_the_spot, "kept", "forced"),
        (beside, "rejected",
         "it leaves its input as it is, where the stock layer works in place"),
    ],
    ids=["in place", "beside"],
)  # fmt: skip
def test_an_activation_in_place_can_be_replaced_by_one_that_works_so(
    fused: Any, verdict: str, reason: str
) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 3))
    result = run_trial(model, [Offers(nn.ReLU, forward_of(fused))], mode="force")
    assert reason_of(result, verdict) == reason
