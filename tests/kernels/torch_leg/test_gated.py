"""SwiGLU and GeGLU as torch sees them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradwatch.fused import gated_eligible, swiglu_packed

G, U = torch.randn(5, 8), torch.randn(5, 8)


class FeedForward(nn.Module):
    """A block that calls the functional form."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(swiglu_packed(self.up(x)))


def trained(block: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> list[Tensor]:
    y = block(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), list(module.parameters()))]


# Dynamo itself instantiates the base class of Functions while it traces one.
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated")
def test_a_block_compiles_as_one_graph_and_checkpoints_to_the_same_bits() -> None:
    block, x = FeedForward(), torch.randn(4, 8)
    eager = trained(block, block, x)
    whole: Any = torch.compile(block, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(trained(whole, block, x), eager)
    again = trained(lambda x: checkpoint(block, x, use_reentrant=False), block, x)
    assert all(torch.equal(a, b) for a, b in zip(eager, again, strict=True))


@pytest.mark.parametrize(
    ("gate", "up", "reason"),
    [
        (G, U, None),
        (G, None, None),
        (torch.randn(5, 7), None, "does not hold two halves"),
        (G, U.bfloat16(), r"multiplied by (5, 8) torch.bfloat16"),
        (G.double(), U.double(), "computes in float32, which torch.float64"),
        (G.to("meta"), U.to("meta"), "kernels run on CUDA devices"),
    ],
)
def test_what_the_kernel_cannot_take_is_named(
    gate: Tensor, up: Tensor | None, reason: str | None
) -> None:
    got = gated_eligible(gate, up)
    assert got is None if reason is None else reason in str(got)
