"""channels_last is tried like any other change, and leaves no trace where it is taken back."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from gradwatch.fused.layout import ChannelsLast
from tests.fused.lab import CLOCK, QUICK, run_trial
from tests.kit import Calm, build, fit, make_loader


class Convolutions(nn.Module):
    """Two convolutions, and a wait where channels do not come last (or where they do)."""

    def __init__(self, *, slow_when_last: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(16, 3)
        self._slow = slow_when_last

    def forward(self, x: Tensor) -> Tensor:
        last = self.second.weight.is_contiguous(memory_format=torch.channels_last)
        if last == self._slow:
            CLOCK.spend(0.01)
        return self.head(self.second(self.first(x)).flatten(1))


BATCH = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(3)


def test_the_layout_changes_and_comes_back_to_the_same_memory() -> None:
    model = Convolutions(slow_when_last=True)
    layout, weight = ChannelsLast(model), model.first.weight
    before = weight.data_ptr(), weight.detach().clone(), weight.stride()
    layout.turn(on=True)
    layout.turn(on=True)
    assert layout.layers == ("first", "second")
    assert model.first.weight is weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(weight, before[1])
    with torch.no_grad():
        weight.add_(1)
    layout.turn(on=False)
    assert (weight.data_ptr(), weight.stride()) == (before[0], before[2])
    assert torch.equal(weight, before[1] + 1)


def test_a_model_laid_out_by_its_user_is_left_alone() -> None:
    model: Any = Convolutions(slow_when_last=True)
    model = model.to(memory_format=torch.channels_last)
    assert ChannelsLast(model).layers == ()


def test_state_of_the_optimizer_follows() -> None:
    model = Convolutions(slow_when_last=False)
    optimizer = torch.optim.Adam(model.parameters())
    model(BATCH[0]).sum().backward()
    optimizer.step()
    before = {name: value.clone() for name, value in optimizer.state[model.first.weight].items()}
    layout = ChannelsLast(model)
    layout.turn(on=True)
    layout.follow(optimizer)
    after = optimizer.state[model.first.weight]
    assert after["exp_avg"].is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_goes_on_as_if_nothing_had_been_laid_out_anew(fused: bool) -> None:
    """A fused one reads weight, gradient and state in one order: that of the memory."""
    ends = []
    for turns in (False, True):
        torch.manual_seed(0)
        model = Convolutions(slow_when_last=False)
        optimizer = torch.optim.Adam(model.parameters(), 0.1, fused=fused)
        layout = ChannelsLast(model)
        for on in (False, True, True, False, False):
            optimizer.zero_grad()
            model(BATCH[0]).square().sum().backward()
            if turns:
                layout.turn(on=on)
                layout.follow(optimizer)
            optimizer.step()
        ends.append([each.detach().clone() for each in model.parameters()])
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)


def test_the_state_of_the_optimizer_comes_back_to_the_old_layout() -> None:
    module, optimizers = build(Deep), list[torch.optim.Optimizer]()

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizers.append(torch.optim.Adam(parameters))
        return optimizers[0]

    module._make = make
    options = FusedBackwardOptions(
        **{**QUICK, "mode": "force", "after_steps": 1, "channels_last": True, "providers": ()}
    )
    fit(module, [FusedBackward(options)], make_loader(), max_epochs=1)
    assert all(module.seen[-3:])
    assert optimizers[0].state[module.conv[1].weight]["exp_avg"].is_contiguous()


@pytest.mark.parametrize(("slow_when_last", "verdict"), [(False, "kept"), (True, "rolled back")])
def test_it_is_kept_where_it_pays(slow_when_last: bool, verdict: str) -> None:
    model = Convolutions(slow_when_last=slow_when_last)
    strides = [each.stride() for each in model.parameters()]
    result = run_trial(model, [], BATCH, channels_last=True)
    assert result.channels_last is (verdict == "kept")
    row = result.rows[0]
    assert (row.kind, row.layers, row.verdict) == ("channels_last", ("first", "second"), verdict)
    assert [each.stride() for each in model.parameters()] == strides


class Deep(Calm):
    """Calm, with a second convolution: of the first's one channel either order is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.conv: Any = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3))
        self.seen: list[bool] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        weight = self.conv[1].weight
        self.seen.append(weight.is_contiguous(memory_format=torch.channels_last))
        return super().training_step(batch, batch_idx)


def test_training_goes_on_in_the_kept_layout_and_ends_in_the_old_one() -> None:
    sink, module, stock = MemorySink(), build(Deep), build(Deep)
    options = FusedBackwardOptions(
        **{**QUICK, "mode": "force", "after_steps": 1, "channels_last": True, "providers": ()}
    )
    fit(stock, [], make_loader(), max_epochs=1)
    fit(module, [FusedBackward(options, sinks=[sink])], make_loader(), max_epochs=1)
    (row,) = [row for table in sink.tables for row in table.rows]
    assert (row[0], row[2], row[4]) == ("conv.1", "channels_last", "kept")
    assert module.seen[:2] == [False, False]
    assert all(module.seen[-5:])
    assert module.conv[1].weight.is_contiguous()
    for own, other in zip(module.losses[-5:], stock.losses[-5:], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
