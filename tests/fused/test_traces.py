"""What a trace of a block cannot write down keeps it as it is, or is checked at each call."""

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

from gradwatch.fused.providers import Site
from gradwatch.fused.trial import Result
from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import run_trial

CALLS: list[int] = []
ROWS = 77
LABELLED = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(1)), torch.arange(ROWS) % 3


def linear_relu(linear: nn.Linear, x: Tensor) -> Tensor:
    CALLS.append(1)
    return F.relu(F.linear(x, linear.weight, linear.bias))


class Pairs:
    """Takes over a product and the activation behind it."""

    name = "pairs"

    def propose(self, site: Site) -> Any:
        return linear_relu if site.pattern == "Linear → act" else None


class Settings:
    """What a config is to a model."""

    def __init__(self) -> None:
        self.scale = 1.0


class Block(nn.Module):
    """A product, an activation, and a forward of the test's choice."""

    def __init__(self, way: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU()
        self.scale, self.steps, self.settings, self._way = 1.0, 0, Settings(), way

    def forward(self, x: Tensor) -> Tensor:
        return self._way(self, x)


def tried(way: Callable[[Any, Tensor], Tensor]) -> tuple[Any, Result]:
    torch.manual_seed(0)
    random.seed(3)
    model = nn.Sequential(nn.Linear(8, 8), Block(way), nn.Linear(8, 3))
    return model[1], run_trial(model, [Pairs()], LABELLED, mode="force")


def plain(self: Any, x: Tensor) -> Tensor:
    return self.scale * self.settings.scale * self.act(self.up(x)) + x


@pytest.fixture
def worn() -> Iterator[Any]:
    """Give a block that wears a chain."""
    block, result = tried(plain)
    assert [each.kind for each in result.kept] == ["Linear → relu"]
    wardrobe = Wardrobe()
    wardrobe.wear(result.kept)
    CALLS.clear()
    yield block
    wardrobe.take_off()


def drops_by_python(self: Any, x: Tensor) -> Tensor:
    if random.random() < 0.2:  # noqa: S311 - what users write
        return x
    return x + self.act(self.up(x))


def drops_by_torch(self: Any, x: Tensor) -> Tensor:
    if torch.rand(()).item() < 0.2:
        return x
    return x + self.act(self.up(x))


def drops_by_numpy(self: Any, x: Tensor) -> Tensor:
    if np.random.rand() < 0.0:  # noqa: NPY002 - what users write
        return x
    return x + self.act(self.up(x))


def scales_by_numpy(self: Any, x: Tensor) -> Tensor:
    return x + self.act(self.up(x)) * (1 + 0 * float(np.random.randn()))  # noqa: NPY002 - as above


def without_gradients(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = self.norm(x)
    return x + self.act(self.up(h))


def in_float32(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = self.up(x)
    return x + self.act(self.up(h.float()))


def recomputed(self: Any, x: Tensor) -> Tensor:
    return x + self.act(self.up(checkpoint(self.norm, x, use_reentrant=False)))


def recomputed_by_a_function(self: Any, x: Tensor) -> Tensor:
    return x + self.act(self.up(checkpoint(self.norm, x, use_reentrant=True)))


@pytest.mark.parametrize(
    "way",
    [
        drops_by_python, drops_by_torch, drops_by_numpy, scales_by_numpy, without_gradients,
        in_float32, recomputed, recomputed_by_a_function,
    ],
)  # fmt: skip
def test_a_forward_that_does_more_than_its_operations_is_not_rewritten(
    way: Callable[[Any, Tensor], Tensor],
) -> None:
    _, result = tried(way)
    assert result.kept == ()


@pytest.mark.parametrize("holder", [lambda block: block, lambda block: block.settings])
def test_a_number_that_the_forward_reads_may_change(holder: Any, worn: Any) -> None:
    x = LABELLED[0]
    assert not torch.equal(worn(x), x)
    assert CALLS == [1]
    holder(worn).scale = 0.0
    assert torch.equal(worn(x), x)
    holder(worn).scale = 1.0
    worn(x)
    assert CALLS == [1, 1]


def test_a_number_that_the_forward_does_not_read_keeps_nothing_from_running(worn: Any) -> None:
    worn.steps += 1
    worn(LABELLED[0])
    assert CALLS == [1]


def test_a_hook_that_comes_later_fires(worn: Any) -> None:
    fired: list[int] = []
    handle = worn.up.register_forward_hook(lambda *_: fired.append(1))
    worn(LABELLED[0])
    handle.remove()
    worn(LABELLED[0])
    assert (fired, CALLS) == ([1], [1])


def test_a_module_put_in_the_place_of_a_member_is_called(worn: Any) -> None:
    worn.up = nn.Sequential(nn.Linear(8, 8), nn.Identity())
    before = worn.up[0].weight.grad
    worn(LABELLED[0]).sum().backward()
    assert before is None
    assert worn.up[0].weight.grad is not None


def test_no_activation_of_the_trial_outlives_it() -> None:
    _, result = tried(plain)
    gc.collect()
    # By type: some objects of torch's answer isinstance with a warning.
    kept = [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
    kept = [each for each in kept if not is_lazy(each) and each.dim()]
    own = {id(each) for each in LABELLED}
    assert result.kept
    assert [each.shape for each in kept if len(each) == ROWS and id(each) not in own] == []
