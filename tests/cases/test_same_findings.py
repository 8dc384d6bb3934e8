"""A plain loop is told what a Trainer is told: same rule, layer, step and norms."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradwatch import Finding
from tests.cases.conftest import through_lightning, through_plain_loop


class Root(nn.Module):
    """A root whose derivative is infinite at zero."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt((x * (x > 0)) ** 2)


class Cut(nn.Module):
    """Cut the graph."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x.detach())


def make_chain() -> nn.Module:
    hidden = [layer for _ in range(14) for layer in (nn.Linear(4, 4), nn.Sigmoid())]
    return nn.Sequential(*hidden, nn.Linear(4, 3))


def make_dead() -> nn.Module:
    off = nn.Linear(4, 4)
    with torch.no_grad():
        off.weight.zero_()
        off.bias.fill_(-1.0)
    return nn.Sequential(off, nn.ReLU(), nn.Linear(4, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "healthy": lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)),
    "root": lambda: nn.Sequential(nn.Linear(4, 8), Root(), nn.Linear(8, 3)),
    "cut": lambda: nn.Sequential(nn.Linear(4, 8), Cut(), nn.Linear(8, 3)),
    "chain": make_chain,
    "dead": make_dead,
}


def told(findings: tuple[Finding, ...]) -> list[tuple[str, str, int, str]]:
    return [(each.rule, each.layer, each.step, each.severity) for each in findings]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("kind", list(MODELS))
def test_both_ways_tell_the_same(kind: str, policy: str, accumulate: int) -> None:
    net = MODELS[kind]()
    batches: list[Any] = [(torch.randn(5, 4), torch.randn(5, 3)) for _ in range(14)]
    options: dict[str, Any] = {"policy": policy, "accumulate": accumulate}
    options["backward_hooks"] = "every_step"
    one = through_lightning(copy.deepcopy(net), batches, **options)
    other = through_plain_loop(net, batches, **options)
    assert told(one.findings) == told(other.findings)
    assert bool(one.findings) is (kind != "healthy")
    assert (one.error is None) is (other.error is None)
    for a, b in zip(one.sink.records, other.sink.records, strict=True):
        assert a.flow is not None
        assert b.flow is not None
        assert (a.step, a.flow.layers) == (b.step, b.flow.layers)
        for name in ("grad_norm", "weight_norm", "act_grad", "update_ratio", "zero_fraction"):
            np.testing.assert_equal(getattr(a.flow, name), getattr(b.flow, name))
