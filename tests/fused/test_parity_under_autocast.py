"""Under autocast products are short and gradients long: the measure knows both."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.operation import Call, Half, Operation
from gradwatch.fused.parity import check
from gradwatch.non_finite.rng import RandomState
from tests.fused.lab import run_trial
from tests.fused.nets import Chains, PreNorm, Stack


def stock(linear: nn.Module, x: Tensor) -> Tensor:
    return F.gelu(nn.Linear.forward(linear, x))  # type: ignore[arg-type]


def forward(linear: nn.Linear, x: Tensor) -> Tensor:
    return F.gelu(F.linear(x, linear.weight, linear.bias))


def off(linear: nn.Linear, x: Tensor) -> Tensor:
    return forward(linear, x) * 1.05


def in_half(linear: nn.Linear, x: Tensor) -> Tensor:
    return forward(linear, x.half().float())


def checked(fused: Any, half: torch.dtype | None) -> str:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 32, generator=generator).requires_grad_()
    out = torch.float32 if half is None else half
    gradient = torch.randn(64, 48, generator=generator).to(out)
    torch.manual_seed(0)
    call = Call((x,), {}, (gradient,), RandomState.take(), Half("cpu", half))
    return check(
        Operation("Linear → gelu", ("",), stock, fused), nn.Linear(32, 48), call, 20.0
    ).reason


@pytest.mark.parametrize("half", [torch.bfloat16, None], ids=["autocast", "without"])
def test_a_long_gradient_through_short_products_has_a_measure(half: torch.dtype | None) -> None:
    assert checked(forward, half) == ""
    assert "off, the stock one" in checked(off, half)


def test_what_is_coarser_than_a_long_type_is_found_out_where_nothing_is_short() -> None:
    assert "off, the stock one" in checked(in_half, None)


def test_a_block_under_autocast_is_rewritten_with_a_long_residual_and_a_short_branch() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(batch[0])
        return F.cross_entropy(logits.float(), batch[1])

    torch.manual_seed(0)
    batch = torch.randn(64, 16), torch.arange(64) % 3
    model = Stack(PreNorm(16) for _ in range(2))
    result = run_trial(model, [Chains()], batch, mode="force", loss=loss, regression_steps=1)
    kept = {(each.layer, each.kind) for each in result.kept}
    assert {("<root>", "add → LayerNorm"), ("layers.0.mlp", "Linear → gelu")} <= kept
