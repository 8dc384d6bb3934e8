"""A fused function was made for the numbers a module held: with others the module computes."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.providers import TorchFused
from gradwatch.fused.site import Site
from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import run_trial

CALLS: list[int] = []


def weighed(net: nn.Module, batch: Any) -> Tensor:
    # A sum of squares would be the same for every input: it is what a norm makes it.
    y: Tensor = net(batch[0])
    return (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum()


class Settings:
    """What a config is to a norm."""

    def __init__(self) -> None:
        self.eps = 1e-6


class ByHand(nn.Module):
    """A norm as Llama writes it; its epsilon stands where the test says."""

    def __init__(self, read: Callable[[Any], float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.variance_epsilon, self.settings, self._read = 1e-6, Settings(), read

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self._read(self))
        return self.weight * y.to(x.dtype)


class Closed:
    """Closes over what the norm was found to compute."""

    name = "closed"

    def propose(self, site: Site) -> Any:
        form = site.norm
        if form is None:
            return TorchFused().propose(site)

        def rms(norm: nn.Module, x: Tensor) -> Tensor:
            CALLS.append(1)
            weight: Any = norm.weight
            if form.centred:
                return F.layer_norm(x, (8,), weight, norm.bias, form.eps)  # type: ignore[arg-type]
            return F.rms_norm(x, (8,), weight, form.eps)

        def forward(self: nn.Module, x: Tensor) -> Tensor:
            return rms(self, x)

        def add_norm(norm: nn.Module, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            total = x + residual
            return rms(norm, total), total

        return {"norm": forward, "add → norm": add_norm}.get(site.pattern)


class Alone(nn.Module):
    """A norm by itself."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))


class BehindASum(Alone):
    """A norm behind an addition."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x) + x)


class Across(nn.Module):
    """A norm in a child, behind an addition of its parent's."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.linear, self.child = nn.Linear(8, 8), nn.Sequential(norm, nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.child(self.linear(x) + x)


def on_the_norm(norm: Any) -> None:
    norm.variance_epsilon = norm.eps = 1.0


def in_its_config(norm: Any) -> None:
    norm.settings.eps = 1.0


def own(norm: Any) -> float:
    epsilon: float = norm.variance_epsilon
    return epsilon


def configured(norm: Any) -> float:
    epsilon: float = norm.settings.eps
    return epsilon


@pytest.fixture
def wardrobe() -> Iterator[Wardrobe]:
    made = Wardrobe()
    yield made
    made.take_off()


NORMS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], None]]] = {
    "by hand": (lambda: ByHand(own), on_the_norm),
    "by hand, from a config": (lambda: ByHand(configured), in_its_config),
    "LayerNorm": (lambda: nn.LayerNorm(8), on_the_norm),
}


# A LayerNorm by itself is a module like others: its function takes eps from it.
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Alone, "by hand"),
        (Alone, "by hand, from a config"),
        *product((BehindASum, Across), NORMS),
    ],
)
def test_another_epsilon_sends_the_call_the_stock_way(
    make: Any, name: str, wardrobe: Wardrobe
) -> None:
    torch.manual_seed(0)
    norm, change = NORMS[name]
    model, x = make(norm()), torch.randn(5, 8)
    result = run_trial(
        nn.Sequential(nn.Linear(8, 8), model), [Closed()], (x, None), mode="force",
        loss=weighed,
    )  # fmt: skip
    wardrobe.wear(result.kept)
    CALLS.clear()
    before = model(x)
    assert CALLS == [1]
    change(next(each for each in model.modules() if isinstance(each, ByHand | nn.LayerNorm)))
    after = model(x)
    assert CALLS == [1]
    wardrobe.take_off()
    torch.testing.assert_close(after, model(x), rtol=0, atol=0)
    assert not torch.allclose(before, after, rtol=1e-3)


def test_another_form_of_an_activation_sends_the_call_the_stock_way(wardrobe: Wardrobe) -> None:
    class Pairs:
        name = "pairs"

        def propose(self, site: Site) -> Any:
            def pair(linear: nn.Linear, x: Tensor) -> Tensor:
                CALLS.append(1)
                return F.gelu(F.linear(x, linear.weight, linear.bias))

            return pair if site.pattern == "Linear → act" else None

    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))
    x = torch.randn(5, 8)
    result = run_trial(
        model, [Pairs()], (x, None), mode="force",
        loss=weighed,
    )  # fmt: skip
    wardrobe.wear(result.kept)
    CALLS.clear()
    model(x)
    model[1].approximate = "tanh"
    after = model(x)
    assert CALLS == [1]
    wardrobe.take_off()
    assert torch.equal(after, model(x))
