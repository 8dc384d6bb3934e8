"""A chain that runs across modules is a candidate of the smallest module that holds it all."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.fused.trial import Result
from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import loss_of, make_batch, run_trial, verdicts
from tests.fused.nets import CALLS, Chains, Convolved, PostNorm, PreNorm, ResNet, Stack


def images(size: int = 4, width: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, width, 6, 6, generator=generator), torch.arange(size) % 3


def forced(model: nn.Module, batch: Any, **options: Any) -> Result:
    torch.manual_seed(0)
    return run_trial(model, [Chains()], batch, mode="force", **options)


def kinds(result: Result) -> list[tuple[str, str]]:
    return [(each.layer, each.kind) for each in result.kept]


def outcome(model: nn.Module, batch: Any) -> list[Tensor]:
    model.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    found = [loss.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]
    return [*found, *(each.clone() for each in model.buffers())]


def stock_twin(model: nn.Module) -> nn.Module:
    twin = copy.deepcopy(model)
    for each in twin.modules():
        vars(each).pop("forward", None)
    return twin


@pytest.fixture
def wardrobe() -> Iterator[Wardrobe]:
    made = Wardrobe()
    yield made
    made.take_off()


def make_sequential() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 4, 3), nn.Sequential(nn.BatchNorm2d(4)), nn.Identity(), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], Any, list[tuple[str, str]]]] = {
    "ResNet": (
        ResNet,
        images(),
        [
            ("stem", "BatchNorm2d → relu"),
            ("blocks.0", "BatchNorm2d → add → relu"),
            ("blocks.0.layer.0", "BatchNorm2d → relu"),
        ],
    ),
    "pre-norm": (
        lambda: Stack(PreNorm(16) for _ in range(2)),
        make_batch(),
        [("<root>", "add → LayerNorm"), ("layers.0.mlp", "Linear → gelu"),
         ("layers.1.mlp", "Linear → gelu"), ("layers.0.norm", "LayerNorm")],
    ),
    "post-norm": (
        lambda: Stack(PostNorm(16) for _ in range(2)),
        make_batch(),
        [("layers.0", "add → LayerNorm"), ("layers.1", "add → LayerNorm"),
         ("layers.0.mlp", "Linear → gelu"), ("layers.1.mlp", "Linear → gelu"),
         ("norm", "LayerNorm")],
    ),
    "nested Sequential": (make_sequential, images(), [("<root>", "BatchNorm2d → relu")]),
}  # fmt: skip


def made(name: str) -> tuple[nn.Module, Any, list[tuple[str, str]]]:
    torch.manual_seed(0)
    make, batch, expected = MODELS[name]
    model = make()
    with torch.no_grad():
        model(batch[0])
    return model, batch, expected


@pytest.mark.parametrize("name", MODELS)
def test_the_smallest_module_that_holds_a_chain_is_rewritten(name: str) -> None:
    model, batch, expected = made(name)
    result = forced(model, batch)
    assert sorted(kinds(result)) == sorted(expected)
    tried = Counter((layer, row.kind) for row in result.rows for layer in row.layers)
    assert max(tried.values()) == 1


@pytest.mark.parametrize("name", MODELS)
def test_what_is_rewritten_computes_what_it_did(name: str, wardrobe: Wardrobe) -> None:
    model, batch, expected = made(name)
    stock = stock_twin(model)
    wardrobe.wear(forced(model, batch).kept)
    CALLS.clear()
    for _ in range(2):
        torch.testing.assert_close(
            outcome(model, batch), outcome(stock, batch), rtol=1e-4, atol=1e-6
        )
    chains = {kind for _, kind in expected if "→" in kind}
    assert len({each for each in CALLS if "→" in each}) == len(chains)


def test_a_child_that_is_looked_into_brings_its_own_chains_along(wardrobe: Wardrobe) -> None:
    """The activation behind the inner chain's norm lies in the outer module."""
    model: Any = nn.Sequential(
        nn.Sequential(Convolved(4, nn.ReLU()), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), nn.ReLU(),
        nn.Flatten(), nn.Linear(144, 3),
    )  # fmt: skip
    stock = stock_twin(model)
    result = forced(model, images())
    # The outer one reaches into the Sequential, whose first part it leaves whole.
    assert kinds(result) == [("<root>", "BatchNorm2d → relu"), ("0.0", "BatchNorm2d → relu")]
    wardrobe.wear(result.kept)
    CALLS.clear()
    torch.testing.assert_close(
        outcome(model, images()), outcome(stock, images()), rtol=1e-4, atol=1e-6
    )
    assert CALLS == ["norm → relu", "norm → relu"]


class Pair(nn.Module):
    """A chain of its own, and a norm whose activation stands outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4)
        self.between = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.act(self.first(x))))


def make_holder() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 1), Pair(), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def test_nothing_is_tried_twice(wardrobe: Wardrobe) -> None:
    model: Any = make_holder()
    stock = stock_twin(model)
    result = forced(model, images())
    assert kinds(result) == [("<root>", "BatchNorm2d → relu")]
    assert [each.kind for each in result.kept[0].operations] == ["BatchNorm2d → relu"] * 2
    told = [(row.layers, row.verdict, row.reason) for row in result.rows]
    assert (("1",), "not tried", "it is part of a chain that was kept") in told
    wardrobe.wear(result.kept)
    CALLS.clear()
    torch.testing.assert_close(
        outcome(model, images()), outcome(stock, images()), rtol=1e-4, atol=1e-6
    )
    assert CALLS == ["norm → relu", "norm → relu"]


class OnlyTheInner(Chains):
    """Refuses the pair whose norm is the holder's."""

    def __init__(self, refused: nn.Module) -> None:
        self.refused = refused

    def propose(self, site: Any) -> Any:
        offer = super().propose(site)
        return wrong if offer and self.refused in site.members else offer


def wrong(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    return nn.BatchNorm2d.forward(norm, x).relu() * 1.01


def test_where_the_holder_is_rejected_its_child_gets_its_turn() -> None:
    model: Any = make_holder()
    provider = OnlyTheInner(model[1].last)
    result = run_trial(model, [provider], images(), mode="force")
    assert kinds(result) == [("1", "BatchNorm2d → relu")]
    rejected = [row.layers for row in result.rows if row.verdict == "rejected"]
    assert rejected == [("<root>",)]


def test_a_hook_on_a_child_keeps_it_from_being_looked_into_and_is_told() -> None:
    torch.manual_seed(0)
    model: Any = ResNet()
    model.blocks[0].layer.register_forward_hook(lambda *_: None)
    result = forced(model, images())
    assert ("blocks.0", "BatchNorm2d → add → relu") not in kinds(result)
    assert ("blocks.0.layer.0", "BatchNorm2d → relu") in kinds(result)
    assert verdicts(result)["BatchNorm2d → add → relu"] == "refused"
    (reason,) = [row.reason for row in result.rows if row.verdict == "refused"]
    assert reason == "layer carries a hook, which would not fire"


def test_a_child_that_others_call_too_is_not_looked_into_and_is_told() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net: Any = ResNet()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.net(self.net.blocks[0].layer[1](x))
            return y

    result = forced(Twice(), images())
    assert "BatchNorm2d → add → relu" not in {kind for _, kind in kinds(result)}
    refused = [row.reason for row in result.rows if row.verdict == "refused"]
    assert "layer.1 is called from elsewhere too" in refused
