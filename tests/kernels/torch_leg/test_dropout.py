"""Dropout as torch sees it, and what a swapped ``nn.Dropout`` draws."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradwatch.fused import LAYERS, dropout, swap

X = torch.randn(5, 8)


def drawn(module: nn.Module, x: Tensor, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    x = x.detach().clone().requires_grad_()
    y = module(x)
    return [y.detach(), *torch.autograd.grad(y, x, torch.ones_like(y))]


def same(*results: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.fixture
def module() -> nn.Dropout:
    module = nn.Dropout(0.3)
    swap(module)
    return module


ONES = torch.ones(64, 32)


def test_a_swapped_module_drops_a_share_of_p_and_scales_the_rest(module: nn.Dropout) -> None:
    y, dx = drawn(module, ONES)
    assert torch.equal(y, dx)
    assert set(y.unique().tolist()) == set((ONES / torch.tensor(0.7)).unique().tolist()) | {0.0}
    assert abs(float((y == 0).double().mean()) - 0.3) < 0.05


def test_the_generators_seed_and_nothing_else_settles_the_mask(module: nn.Dropout) -> None:
    assert same(drawn(module, ONES), drawn(module, ONES))
    assert not same(drawn(module, ONES), drawn(module, ONES, seed=1))
    torch.manual_seed(0)
    assert not torch.equal(module(ONES), module(ONES))
    torch.manual_seed(0)
    torch.randint(2**63 - 1, (1,))
    following = torch.rand(3)
    drawn(module, ONES)
    assert torch.equal(torch.rand(3), following)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_draws_the_same_mask_again(module: nn.Dropout, use_reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(32, 32), module, nn.Tanh())
    recomputed = partial(checkpoint, block, use_reentrant=use_reentrant)
    takes: list[Callable[[Tensor], Any]] = [block, recomputed]
    grads: list[list[Any]] = []
    for take in takes:
        torch.manual_seed(0)
        x = ONES.clone().requires_grad_()
        take(x).square().sum().backward()
        grads.append([x.grad])
    assert same(*grads)


# Dynamo itself instantiates the base class of Functions while it traces one.
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated")
def test_a_compiled_module_is_one_graph_and_draws_what_the_eager_one_does(
    module: nn.Dropout,
) -> None:
    eager = drawn(module, ONES)
    whole: Any = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert same(drawn(whole, ONES), eager)


def test_copies_pickles_and_state_stay_those_of_the_stock_module(module: nn.Dropout) -> None:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),  # noqa: S301 - its own bytes
        torch.load(buffer, weights_only=False),
    ):
        assert (type(other), other.p, list(other.state_dict())) == (nn.Dropout, 0.3, [])
        assert "forward" in vars(other) or not same(drawn(other, ONES), drawn(module, ONES))
    assert same(drawn(copy.deepcopy(module), ONES), drawn(module, ONES))


def test_undo_brings_the_stock_mask_back() -> None:
    module = nn.Dropout(0.3)
    stock = drawn(module, ONES)
    undo = swap(module)
    assert not same(drawn(module, ONES), stock)
    undo()
    undo()
    assert same(drawn(module, ONES), stock)


def test_without_training_bias_and_residual_are_added_and_nothing_is_drawn() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    y = dropout(X, 0.5, torch.ones(8), residual=X, training=False)
    torch.testing.assert_close(y, 2 * X + 1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("module", "x", "reason"),
    [
        (nn.Dropout(0.3).eval(), X, "drops nothing"),
        (nn.Dropout(0.0), X, "drops nothing"),
        (nn.Dropout(1.0), X, "its p of 1.0 is over 0.99"),
        (nn.Dropout(0.3, inplace=True), X, "writes over its input"),
        (nn.Dropout(0.3), torch.tensor(1.0), "a single number"),
        (nn.Dropout(0.3), X.double(), "computes in float32, which torch.float64"),
    ],
)
def test_what_the_kernel_cannot_take_is_named_and_goes_the_stock_way(
    module: nn.Dropout, x: Tensor, reason: str
) -> None:
    assert reason in str(LAYERS[nn.Dropout].eligible(module, x))
    torch.manual_seed(0)
    stock = module(x.clone())
    undo = swap(module)
    torch.manual_seed(0)
    assert torch.equal(module(x.clone()), stock)
    undo()
