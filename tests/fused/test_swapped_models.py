"""A model that wears swaps is the model it was: state, copies, hooks, other calls."""

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from gradwatch.fused.trial import Result
from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import loss_of, make_batch, run_trial
from tests.fused.nets import CALLS, Chains


class Basic(nn.Module):
    """A residual block as torchvision writes it: one in-place ReLU, an in-place addition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Block(nn.Module):
    """A transformer block's second half; the sum is read again behind the norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        )  # fmt: skip

    def forward(self, x: Tensor, attended: Tensor, scale: float = 1.0) -> Tensor:
        x = x + attended
        return x + scale * self.down(F.gelu(self.up(self.norm(x))))


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.basic, self.block = nn.Conv2d(1, 4, 3), Basic(4), Block(16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.basic(self.stem(x)).flatten(2)
        return self.head(self.norm(self.block(h, h.flip(1)).mean(1)))


def batch_of(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 1, 6, 6, generator=generator), torch.arange(size) % 3


@pytest.fixture(scope="module")
def tried() -> tuple[Both, Result]:
    torch.manual_seed(0)
    model = Both()
    return model, run_trial(model, [Chains()], batch_of(4), mode="force")


@pytest.fixture
def worn(tried: Any) -> Iterator[Both]:
    model, result = tried
    wardrobe = Wardrobe()
    wardrobe.wear(result.kept)
    CALLS.clear()
    yield model
    wardrobe.take_off()


def outcome(model: nn.Module, batch: Any) -> list[Tensor]:
    model.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    return [loss.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]


def test_chains_are_found_where_the_data_flow_proves_them(tried: Any) -> None:
    _, result = tried
    assert {(each.layer, each.kind): sorted(each.skipped) for each in result.kept} == {
        ("basic", "BatchNorm2d → relu, BatchNorm2d → add → relu"):
            ["basic.bn1", "basic.bn2", "basic.relu"],
        ("block", "add → LayerNorm, Linear → gelu"): ["block.norm", "block.up"],
        ("norm", "LayerNorm"): [],
    }  # fmt: skip
    # One row each: what lies in a chain is not tried beside it, and nothing was refused.
    assert [(row.layers, row.verdict) for row in result.rows] == [
        (("basic",), "kept"), (("block",), "kept"), (("norm",), "kept"),
    ]  # fmt: skip


class Lone(nn.Module):
    """Such a block, and no norm outside it."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Block(16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x, x.flip(1)))


def test_a_norm_that_lies_in_a_kept_chain_is_told_to_be_part_of_it() -> None:
    result = run_trial(Lone(), [Chains()], make_batch(), mode="force")
    assert [(row.layers, row.kind, row.verdict, row.reason) for row in result.rows] == [
        (("block",), "add → LayerNorm, Linear → gelu", "kept", "forced"),
        (("block.norm",), "LayerNorm", "not tried", "it is part of a chain that was kept"),
    ]


def test_the_swapped_model_computes_what_the_stock_one_does(worn: Both, tried: Any) -> None:
    stock = copy.deepcopy(worn)
    for each in stock.modules():
        vars(each).pop("forward", None)
    for size in (4, 3, 1):
        torch.testing.assert_close(
            outcome(worn, batch_of(size)), outcome(stock, batch_of(size)), rtol=1e-4, atol=1e-6
        )
    assert sorted(set(CALLS)) == [
        "add → norm", "linear → gelu", "norm", "norm → add → relu", "norm → relu",
    ]  # fmt: skip
    torch.testing.assert_close(dict(worn.named_buffers()), dict(stock.named_buffers()))


def test_a_block_in_another_mode_goes_the_stock_way(worn: Both) -> None:
    worn.eval()
    worn(batch_of(2)[0])
    worn.train()
    assert CALLS == ["norm"]


def test_a_block_called_with_another_option_or_type_goes_the_stock_way(worn: Both) -> None:
    x = torch.randn(2, 4, 16)
    worn.block(x, x, scale=0.5)
    worn.block.double()(x.double(), x.double())
    worn.block.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        worn.block(x, x)
    assert CALLS == []
    worn.block(x, attended=x)
    assert CALLS == ["add → norm", "linear → gelu"]


def test_state_dicts_load_both_ways(worn: Both) -> None:
    stock = Both()
    stock.load_state_dict(worn.state_dict(), strict=True)
    worn.load_state_dict(stock.state_dict(), strict=True)
    assert list(stock.state_dict()) == list(worn.state_dict())


def test_undo_leaves_no_trace(tried: Any) -> None:
    model, result = tried
    before = {name: set(vars(each)) for name, each in model.named_modules()}
    wardrobe = Wardrobe()
    wardrobe.wear(result.kept)
    wardrobe.take_off()
    wardrobe.take_off()
    assert {name: set(vars(each)) for name, each in model.named_modules()} == before


def test_the_optimizer_goes_on_with_the_same_parameters(tried: Any) -> None:
    model, result = tried
    optimizer = torch.optim.Adam(model.parameters())
    outcome(model, batch_of(4))
    optimizer.step()
    wardrobe = Wardrobe()
    wardrobe.wear(result.kept)
    before = model.norm.weight.detach().clone()
    outcome(model, batch_of(4))
    optimizer.step()
    wardrobe.take_off()
    assert {int(each["step"]) for each in optimizer.state.values()} == {2}
    assert not torch.equal(model.norm.weight, before)


@pytest.mark.parametrize("make", [copy.deepcopy, AveragedModel], ids=["deepcopy", "averaged"])
def test_a_copy_computes_with_its_own_weights(make: Any, worn: Both) -> None:
    average = make(worn)
    with torch.no_grad():
        for each in average.parameters():
            each.zero_()
    x = batch_of(3)[0]
    assert not average(x).any()
    assert worn(x).any()


def test_a_saved_model_loads_as_the_stock_one(worn: Both) -> None:
    buffer = io.BytesIO()
    torch.save(worn, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    for each in loaded.modules():
        assert each.forward.__func__ is type(each).forward
    assert torch.equal(loaded.head.weight, worn.head.weight)


def test_hooks_on_a_module_still_fire_and_those_on_members_keep_it_from_being_fused() -> None:
    torch.manual_seed(0)
    model, fired = Both(), []
    model.basic.bn2.register_forward_hook(lambda *_: fired.append("bn2"))
    model.norm.register_full_backward_hook(lambda *_: fired.append("norm"))
    result = run_trial(model, [Chains()], batch_of(4), mode="force")
    assert ("norm", "LayerNorm") in [(each.layer, each.kind) for each in result.kept]
    assert ("basic", "BatchNorm2d → relu") in [(each.layer, each.kind) for each in result.kept]
    refused = [row.reason for row in result.rows if row.verdict == "refused"]
    assert refused == ["bn2 carries a hook, which would not fire"]
    wardrobe = Wardrobe()
    wardrobe.wear(result.kept)
    fired.clear()
    outcome(model, batch_of(4))
    assert sorted(fired) == ["bn2", "norm"]


class Shared(nn.Module):
    """One norm held in two places, and read by two."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norms = nn.ModuleList([nn.LayerNorm(16)])
        self.again = self.norms[0]
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head(self.again(self.norms[0](F.gelu(h)) + h))


def test_every_place_that_holds_a_module_runs_the_swap() -> None:
    model = Shared()
    result = run_trial(model, [Chains()], make_batch(), mode="force")
    # What the Linear gives is read by GELU and by the addition.
    assert "Linear → gelu" not in {each.kind for each in result.kept}
    wardrobe = Wardrobe()
    wardrobe.wear(result.kept)
    CALLS.clear()
    outcome(model, make_batch())
    assert sorted(CALLS) == ["add → norm", "norm"]
