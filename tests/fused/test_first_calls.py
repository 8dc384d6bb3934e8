"""Which call a candidate is proved on, and what is written over on the way."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import Net, Offers, loss_of, quick, run_trial, verdicts
from tests.fused.nets import CALLS, Chains


def test_a_call_without_gradients_that_comes_first_is_not_the_one_to_prove_on() -> None:
    def looked_at_before(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            model(batch[0])
        return loss_of(model, batch)

    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], mode="force", loss=looked_at_before)
    assert verdicts(result) == {"LayerNorm": "kept"}


def test_a_module_whose_result_nobody_needs_is_not_proved() -> None:
    def only_the_head(model: Any, batch: Any) -> Tensor:
        hidden = model.blocks(batch[0]).detach()
        return loss_of(model.head, (hidden, batch[1]))

    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], mode="force", loss=only_the_head)
    (row,) = result.rows
    assert (row.verdict, row.reason) == (
        "rejected", "it is not called in this step, or gets no gradient",
    )  # fmt: skip


class Added(nn.Module):
    """A convolution, its norm, an addition in place, an activation."""

    def __init__(self, *, over: str) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.act, self._over = nn.ReLU(), over

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        h = self.norm(self.conv(x))
        if self._over == "its own result":
            h += residual
            return self.act(h)
        residual += h
        return self.act(residual)


@pytest.mark.parametrize(
    ("over", "found"), [("its own result", ["BatchNorm2d → add → relu"]), ("the residual", [])]
)
def test_a_sum_that_is_written_over_the_residual_stays_as_it_is(over: str, found: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Added(over=over)

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x, x.clone()).mean((2, 3))

    batch = torch.randn(3, 2, 5, 5), torch.arange(3) % 2
    result = run_trial(Model(), [Chains()], batch, mode="advise")
    assert [row.kind for row in result.rows] == found


class Lengths(nn.Module):
    """It counts one length on and still needs the other."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act = nn.Linear(16, 16), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        more = rows
        more += 1
        return self.act(self.up(x)).reshape(rows, -1) * (more - rows)


def test_a_length_that_is_counted_on_is_not_written_over() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Lengths(), nn.Linear(16, 3))
    result = run_trial(model, [Chains()], mode="force")
    assert [each.kind for each in result.kept] == ["Linear → gelu"]
    x = torch.randn(5, 16)
    before, wardrobe = model(x), Wardrobe()
    wardrobe.wear(result.kept)
    CALLS.clear()
    torch.testing.assert_close(model(x), before)
    assert CALLS == ["linear → gelu"]
    wardrobe.take_off()
