"""Batch norm in all its modes, and inputs of odd shapes, through layers that were swapped."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.trial import Result
from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import Net, Offers, SlowNorm, loss_of, make_batch, named, quick, run_trial

MODES: list[dict[str, Any]] = [
    {},
    {"momentum": None},
    {"momentum": 0.5},
    {"affine": False},
    {"track_running_stats": False},
    {"affine": False, "track_running_stats": False},
]


def right(self: nn.BatchNorm1d, x: Tensor) -> Tensor:
    """Be torch's own, in other words."""
    factor = self.momentum or 0.0
    if self.training and self.num_batches_tracked is not None:
        self.num_batches_tracked.add_(1)
        if self.momentum is None:
            factor = 1.0 / float(self.num_batches_tracked)
    own = self.training or self.running_mean is None
    running = (self.running_mean, self.running_var)
    mean, variance = running if self.training or not own else (None, None)
    return F.batch_norm(x, mean, variance, self.weight, self.bias, own, factor, self.eps)


def update(self: nn.BatchNorm1d, x: Tensor, *, unbiased: bool, counts: bool) -> Tensor:
    """Normalise by hand, with running statistics of one kind or another."""
    if not self.training:
        return right(self, x)
    mean, variance = x.mean(0), x.var(0, unbiased=False)
    if self.running_mean is not None and self.running_var is not None:
        with torch.no_grad():
            share = 0.1 if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean, share)
            self.running_var.lerp_(x.var(0, unbiased=unbiased), share)
            if counts and self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
    y = (x - mean) / (variance + self.eps).sqrt()
    return y if self.weight is None else y * self.weight + self.bias


def biased(self: nn.BatchNorm1d, x: Tensor) -> Tensor:
    return update(self, x, unbiased=False, counts=True)


def uncounted(self: nn.BatchNorm1d, x: Tensor) -> Tensor:
    return update(self, x, unbiased=True, counts=False)


def exponential(self: nn.BatchNorm1d, x: Tensor) -> Tensor:
    return update(self, x, unbiased=True, counts=True)


def make(**mode: Any) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6, **mode)
    if norm.running_mean is not None and norm.running_var is not None:
        norm.running_mean.add_(0.3)
        norm.running_var.mul_(1.7)
    return nn.Sequential(nn.Linear(16, 6), norm, nn.Linear(6, 3))


def tried(model: nn.Module, forward: Any, batch: Any = None) -> Result:
    return run_trial(model, [Offers(nn.BatchNorm1d, named(forward))], batch, mode="force")


def train(model: nn.Module, steps: int = 4) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(6, 16, generator=generator)
        F.cross_entropy(model(x), torch.arange(6) % 3).backward()
        optimizer.step()


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_right_one_is_kept_and_its_statistics_go_on_as_the_stock_ones(
    mode: dict[str, Any], frozen: bool
) -> None:
    model = make(**mode)
    if frozen:
        model[1].eval().requires_grad_(requires_grad=False)
    stock = copy.deepcopy(model)
    result = tried(model, right)
    assert [each.layer for each in result.kept] == ["1"]
    Wardrobe().wear(result.kept)
    train(model)
    train(stock)
    own, other = model.state_dict(), stock.state_dict()
    assert list(own) == list(other)
    for name in own:
        torch.testing.assert_close(own[name], other[name])
    model.eval()
    stock.eval()
    torch.testing.assert_close(model(make_batch()[0]), stock(make_batch()[0]))


@pytest.mark.parametrize(
    ("forward", "mode", "buffer"),
    [
        (biased, {}, "running_var"),
        (uncounted, {}, "num_batches_tracked"),
        (exponential, {"momentum": None}, "running_mean"),
    ],
)
def test_one_whose_statistics_go_another_way_is_rejected_by_its_buffers(
    forward: Any, mode: dict[str, Any], buffer: str
) -> None:
    model = make(**mode)
    train(model)  # the first batch of all makes the cumulative average, whatever its weight
    result = tried(model, forward)
    assert result.kept == ()
    (row,) = result.rows
    assert row.verdict == "rejected"
    assert buffer in row.reason


def test_one_that_is_wrong_only_without_statistics_is_kept_where_there_are_some() -> None:
    assert len(tried(make(), exponential).kept) == 1


def test_a_batch_of_one_raises_the_same_error_in_training() -> None:
    model, one = make(), torch.randn(1, 16)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as stock:
        model(one)
    Wardrobe().wear(tried(model, right).kept)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as swapped:
        model(one)
    assert str(swapped.value) == str(stock.value)
    model.eval()
    assert model(one).shape == (1, 3)


def swapped_net() -> tuple[Net, Net]:
    model, stock = Net(SlowNorm), Net(SlowNorm)
    stock.load_state_dict(model.state_dict())
    kept = run_trial(model, [Offers(SlowNorm, quick)], mode="force").kept
    assert len(kept) == 2
    Wardrobe().wear(kept)
    return model, stock


SHAPES = [(0, 16), (1, 16), (16,), (7, 16), (3, 0, 16), (2, 3, 5, 16)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_inputs_of_odd_shapes_give_the_same_shapes_and_gradients(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    grads: list[list[Tensor]] = []
    for model in swapped_net():
        own = x.clone().requires_grad_()
        y = model(own)
        assert y.shape == (*shape[:-1], 3)
        y.square().sum().backward()
        wanted = [own, *model.parameters()]
        grads.append([torch.zeros(()) if each.grad is None else each.grad for each in wanted])
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.isfinite().all()


@pytest.mark.parametrize("layout", ["transposed", "every second", "expanded"])
def test_inputs_laid_out_in_any_way_give_the_same(layout: str) -> None:
    wide = torch.randn(8, 32, generator=torch.Generator().manual_seed(3))
    x = {
        "transposed": wide[:, :16].t().contiguous().t(),
        "every second": wide[:, ::2],
        "expanded": wide[:1, :16].expand(8, 16),
    }[layout]
    model, stock = swapped_net()
    torch.testing.assert_close(model(x), stock(x))


def test_a_trial_on_a_micro_batch_without_samples_says_so_and_leaves_training_alone() -> None:
    batch = torch.randn(0, 16), torch.zeros(0, dtype=torch.long)

    def total(model: nn.Module, given: Any) -> Tensor:
        return model(given[0]).sum()

    model = Net(SlowNorm)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    result = run_trial(model, [Offers(SlowNorm, quick)], batch, loss=total, mode="force")
    assert result.rows[0].reason
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    loss_of(model, make_batch()).backward()
