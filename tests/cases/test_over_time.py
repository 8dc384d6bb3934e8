"""Gradients that fade over depth or grow over time: told early, with where and since when."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Run = Callable[..., Any]
Note = Callable[[str, str, str], None]


def at_rate(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


def make_chain(depth: int, width: int, activation: Callable[[], nn.Module]) -> nn.Module:
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), activation())]
    return nn.Sequential(*hidden, nn.Linear(width, 3))


@pytest.mark.parametrize(("depth", "width"), [(14, 16), (20, 8)])
@pytest.mark.parametrize("loss_scale", [1.0, 1e4])
def test_a_chain_of_sigmoids_vanishes_at_its_low_end(
    run: Run, note: Note, depth: int, width: int, loss_scale: float
) -> None:
    batches = [(torch.randn(32, width), torch.randn(32, 3)) for _ in range(8)]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean() * loss_scale

    net = make_chain(depth, width, nn.Sigmoid)
    outcome = run(net, batches, loss=loss, optimizer=at_rate(1e-3 / loss_scale))
    finding = outcome.only("vanishing")
    assert finding.layer == "net.0"
    assert 2 < finding.evidence["factor_per_layer"] ** -1 < 20
    note("b23", "net.0 and the ratio per layer", f"{finding.layer}: {finding.summary}")


@pytest.mark.parametrize(("width", "rate"), [(4, 4.0), (12, 2.0)])
def test_a_rate_too_high_is_told_long_before_the_first_nan(
    run: Run, note: Note, width: int, rate: float
) -> None:
    batch = (torch.randn(32, width), torch.randn(32, 3))
    net = nn.Sequential(nn.Linear(width, 3))
    outcome = run(net, [batch] * 250, optimizer=at_rate(rate))
    warning = next(f for f in outcome.findings if f.rule == "exploding")
    assert outcome.error is not None
    end = outcome.error.finding
    assert warning.severity == "warning"
    assert warning.step < end.step - 10
    assert warning.evidence["grown_by"] >= 100
    assert warning.evidence["since_step"] <= 5
    assert end.layer == "<optimizer>"
    assert end.evidence["since_step"] <= 5
    assert f"since step {end.evidence['since_step']}" in end.summary
    told = f"warning at step {warning.step}; {end.layer} at step {end.step}: {end.summary}"
    note("b18", "warned early, growth told at the end", told)
