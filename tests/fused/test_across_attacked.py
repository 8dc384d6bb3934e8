"""A module rewritten through its children stays what it was, whatever is done to them later."""

import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import loss_of, run_trial
from tests.fused.nets import CALLS, Chains, Convolved, ResNet

GENERATOR = torch.Generator().manual_seed(1)
BATCH = torch.randn(4, 4, 6, 6, generator=GENERATOR), torch.arange(4) % 3
TRIPLE = "norm → add → relu"


def stock_twin(model: nn.Module) -> Any:
    twin = copy.deepcopy(model)
    for each in twin.modules():
        vars(each).pop("forward", None)
    return twin


def outcome(model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    loss = loss_of(model, BATCH)
    loss.backward()
    found = [loss.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]
    return [*found, *(each.clone() for each in model.buffers())]


def same_outcome(model: nn.Module, other: nn.Module) -> bool:
    torch.testing.assert_close(outcome(model), outcome(other), rtol=1e-4, atol=1e-6)
    return True


@pytest.fixture(scope="module")
def tried() -> Iterator[Any]:
    """Give a net whose residual block is rewritten through a Sequential and what is in it."""
    torch.manual_seed(0)
    model, wardrobe = ResNet(), Wardrobe()
    kept = run_trial(model, [Chains()], BATCH, mode="force").kept
    assert "blocks.0" in {each.layer for each in kept}
    wardrobe.wear(kept)
    yield model
    wardrobe.take_off()


@pytest.fixture
def worn(tried: Any) -> Any:
    """Give a copy of it: a copy wears what it was made of."""
    CALLS.clear()
    return copy.deepcopy(tried)


def rewritten(model: nn.Module) -> bool:
    CALLS.clear()
    assert same_outcome(model, stock_twin(model))
    return TRIPLE in CALLS


def test_it_runs_fused_as_long_as_nothing_is_changed(tried: Any, worn: Any) -> None:
    assert rewritten(tried)
    assert rewritten(worn)
    assert rewritten(worn)


def hook(model: Any) -> None:
    model.blocks[0].layer.register_forward_hook(lambda _m, _args, y: y * 2)


def pre_hook(model: Any) -> None:
    model.blocks[0].layer[1].register_forward_pre_hook(lambda _m, args: (args[0] + 1,))


def hook_on_an_identity(model: Any) -> None:
    model.blocks[0].shortcut.register_forward_hook(lambda _m, _args, y: y * 2)


def replaced(model: Any) -> None:
    model.blocks[0].layer[1] = nn.Conv2d(4, 4, 1)


def a_shortcut(model: Any) -> None:
    model.blocks[0].shortcut = nn.Conv2d(4, 4, 1)


def appended(model: Any) -> None:
    model.blocks[0].layer.append(nn.Conv2d(4, 4, 1))


def taken_away(model: Any) -> None:
    del model.blocks[0].layer[0]


def another_order(model: Any) -> None:
    first = model.blocks[0].layer.pop(0)
    model.blocks[0].layer.append(first)
    model.blocks[0].layer.append(Convolved(4, nn.Identity()))


def forward_of_its_own(model: Any) -> None:
    child = model.blocks[0].layer[1]
    child.forward = lambda x: type(child).forward(child, x) * 2


def evaluated(model: Any) -> None:
    model.blocks[0].layer[1].eval()


def another_activation(model: Any) -> None:
    model.blocks[0].activation = nn.GELU()


CHANGES = [
    hook, pre_hook, hook_on_an_identity, replaced, a_shortcut, appended, taken_away, another_order,
    forward_of_its_own, evaluated, another_activation,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_what_is_done_to_a_child_that_is_not_called_sends_the_call_the_stock_way(
    change: Callable[[Any], None], worn: Any
) -> None:
    before = [each.clone() for each in outcome(worn)]
    change(worn)
    stock = stock_twin(worn)
    if change is forward_of_its_own:
        forward_of_its_own(stock)
    CALLS.clear()
    assert same_outcome(worn, stock)
    assert TRIPLE not in CALLS
    assert len(CALLS) <= 2
    assert not torch.equal(before[0], outcome(worn)[0])


def test_a_hook_that_goes_again_lets_it_run_fused_again(worn: Any) -> None:
    fired: list[int] = []
    handle = worn.blocks[0].layer.register_forward_hook(lambda *_: fired.append(1))
    assert not rewritten(worn)
    handle.remove()
    assert rewritten(worn)
    # The stock twin is a copy, hook and all.
    assert fired == [1, 1]


def test_a_hook_on_the_calls_of_all_modules_fires(worn: Any) -> None:
    called: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: called.append(m))
    try:
        worn(BATCH[0])
    finally:
        handle.remove()
    assert worn.blocks[0].layer[1].normalization in called
    assert rewritten(worn)


def test_a_whole_child_in_another_mode_is_its_own_affair(worn: Any) -> None:
    worn.blocks[0].layer[1].convolution.eval()
    assert rewritten(worn)


def test_in_evaluation_it_goes_the_stock_way_and_comes_back(worn: Any) -> None:
    stock = stock_twin(worn)
    worn.eval()
    stock.eval()
    CALLS.clear()
    torch.testing.assert_close(worn(BATCH[0]), stock(BATCH[0]))
    assert TRIPLE not in CALLS
    worn.train()
    assert rewritten(worn)


def test_without_gradients_it_computes_the_same(worn: Any) -> None:
    stock = stock_twin(worn)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            torch.testing.assert_close(worn(BATCH[0]), stock(BATCH[0]))


def test_a_copy_is_rewritten_through_its_own_children(worn: Any) -> None:
    twin = copy.deepcopy(worn)
    assert rewritten(twin)
    with torch.no_grad():
        twin.blocks[0].layer[1].normalization.weight.zero_()
    assert not torch.allclose(twin(BATCH[0]), worn(BATCH[0]))
    twin.blocks[0].layer.register_forward_hook(lambda *_: None)
    assert rewritten(worn)


def test_a_pickle_of_it_loads_as_the_stock_model(worn: Any) -> None:
    buffer = io.BytesIO()
    torch.save(worn, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    CALLS.clear()
    assert same_outcome(loaded, stock_twin(worn))
    assert CALLS == []


def test_channels_last_stays_so(worn: Any) -> None:
    worn.to(memory_format=torch.channels_last)
    x = BATCH[0].contiguous(memory_format=torch.channels_last)
    y = worn.blocks(worn.stem(x))
    assert TRIPLE in CALLS
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert rewritten(worn)


def test_it_runs_in_a_wrapper_for_several_ranks(worn: Any, tmp_path: Path) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        # Told to look for parameters that a step does not reach: all of them are reached.
        wrapped = DistributedDataParallel(worn, find_unused_parameters=True)
        loss_of(wrapped, BATCH).backward()
    finally:
        distributed.destroy_process_group()
    assert TRIPLE in CALLS
    assert all(each.grad is not None for each in worn.parameters())


class Block(nn.Module):
    """A child, an activation, and a forward of the test's choice."""

    def __init__(self, way: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.act, self._way = Convolved(4, nn.Identity()), nn.ReLU(), way

    def forward(self, x: Tensor) -> Tensor:
        return self._way(self, x)


def twice(self: Any, x: Tensor) -> Tensor:
    return self.act(self.layer(self.act(self.layer(x) + x)) + x)


def read_again(self: Any, x: Tensor) -> Tensor:
    h = self.layer(x)
    return self.act(h + x) + h


def sum_read_again(self: Any, x: Tensor) -> Tensor:
    total = self.layer(x) + x
    return self.act(total) + total


def residual_read_again(self: Any, x: Tensor) -> Tensor:
    return self.act(self.layer(x) + x) + x


def residual_written_into(self: Any, x: Tensor) -> Tensor:
    residual = x * 1
    total = self.layer(x) + residual
    residual.mul_(3)
    return self.act(total) + residual


def residual_written_into_by_a_child(self: Any, x: Tensor) -> Tensor:
    residual = x * 1
    total = self.layer(x) + residual
    tail = F.relu(residual, inplace=True)
    return self.act(total) + tail


def without_gradients(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = self.layer(x)
    return self.act(h + x)


def under_autocast_of_its_own(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = self.layer(x)
    return self.act(h.float() + x)


def by_its_forward(self: Any, x: Tensor) -> Tensor:
    return self.act(self.layer.forward(x) + x)


@pytest.mark.parametrize(
    ("way", "chains"),
    [
        (twice, 2), (read_again, 0), (sum_read_again, 0), (residual_read_again, 1),
        (residual_written_into, 0), (residual_written_into_by_a_child, 0), (without_gradients, 0),
        (under_autocast_of_its_own, 0), (by_its_forward, 1),
    ],
)  # fmt: skip
def test_a_chain_is_joined_only_where_the_data_flow_bears_it(
    way: Callable[[Any, Tensor], Tensor], chains: int
) -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv2d(4, 4, 1), Block(way), nn.Flatten(), nn.Linear(144, 3))
    stock, wardrobe = stock_twin(model), Wardrobe()
    result = run_trial(model, [Chains()], BATCH, mode="force")
    wardrobe.wear(result.kept)
    CALLS.clear()
    assert same_outcome(model, stock)
    # The graph shows it: no later check has to find it out.
    assert not any("written out" in row.reason for row in result.rows)
    assert CALLS.count(TRIPLE) == chains
    wardrobe.take_off()
