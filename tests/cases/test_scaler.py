"""Half precision with a gradient scaler: overflows are counted, a lasting fault is named."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

Run = Callable[..., Any]
Note = Callable[[str, str, str], None]


class Guarded(nn.Module):
    """Guard the result of a root instead of its input: NaN in the backward only."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.sqrt(x), x)


class Logs(nn.Module):
    """The same with a logarithm."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.log(x * (x > 0)), x)


def make_net(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), *middle, nn.Linear(8, 3))


def make_batches(count: int, factor: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(5, 4, generator=generator) * factor, torch.randn(5, 3, generator=generator))
        for _ in range(count)
    ]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def fused_adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


@pytest.mark.parametrize("exponent", [19, 22])
def test_a_few_overflows_at_the_start_are_counted_and_alarm_nobody(
    run: Run, note: Note, exponent: int
) -> None:
    outcome = run(make_net(nn.ReLU()), make_batches(15), scale=2.0**exponent)
    skipped = outcome.sink.records[-1].scalars["grad/skipped"]
    assert 1 <= skipped < 10
    assert outcome.findings == ()
    scales = [record.scalars["grad/loss_scale"] for record in outcome.sink.records]
    assert scales[0] == 2.0**exponent
    assert scales[-1] == 2.0 ** (exponent - skipped)
    note("b20", "no alarm, skips counted", f"grad/skipped {skipped:.0f}, nothing told")


def test_a_scale_that_stays_too_high_is_information_and_blames_no_layer(
    run: Run, note: Note
) -> None:
    outcome = run(make_net(nn.ReLU()), make_batches(15, 100.0), scale=2.0**126)
    assert outcome.alarms == []
    assert {finding.rule for finding in outcome.findings} <= {"loss_scale"}
    note("b20", "at most information", outcome.findings[0].summary)


@pytest.mark.parametrize("op", [Guarded(), Logs()])
def test_a_nan_in_every_backward_is_named_at_the_tenth_skip(
    run: Run, note: Note, op: nn.Module
) -> None:
    outcome = run(make_net(op), make_batches(12), scale=1024.0)
    finding = outcome.only("non_finite")
    assert (finding.layer, finding.step) == ("net.1", 9)
    assert finding.evidence["skipped_in_a_row"] == 10
    assert finding.evidence["loss_scale"] == 2.0
    assert outcome.sink.records[-1].scalars["grad/skipped"] == 12
    note("b21", "op at the tenth skip, with the scale", f"{finding.layer}: {finding.summary}")


@pytest.mark.parametrize("optimizer", [adam, fused_adam])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_norms_under_a_scaler_are_those_without_one(
    run: Run, note: Note, optimizer: Any, accumulate: int
) -> None:
    norms = []
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        how = {"optimizer": optimizer, "accumulate": accumulate, "scale": scale}
        outcome = run(make_net(nn.Tanh()), make_batches(4), backward_hooks="every_step", **how)
        flow = outcome.sink.records[0].flow
        norms.append([flow.grad_norm, flow.act_grad])
    np.testing.assert_allclose(norms[1], norms[0], rtol=2e-3)
    case = "d02" if optimizer is fused_adam else "d01"
    note(case, "norms of the run without a scale", f"{norms[1][0][0]:.4g}, {norms[0][0][0]:.4g}")


@pytest.mark.parametrize("optimizer", [adam, fused_adam])
def test_norms_in_half_precision_are_those_of_single_precision(run: Run, optimizer: Any) -> None:
    totals = []
    for scale in (None, 1024.0):
        torch.manual_seed(0)
        outcome = run(make_net(nn.Tanh()), make_batches(2), optimizer=optimizer, scale=scale)
        totals.append([record.scalars["grad/norm"] for record in outcome.sink.records])
    np.testing.assert_allclose(totals[1], totals[0], rtol=0.02)


def test_a_bad_loss_under_a_scaler_is_a_fault_at_once(run: Run) -> None:
    batches = make_batches(3)
    batches[1][0][2, 0] = float("nan")
    outcome = run(make_net(nn.Tanh()), batches, scale=1024.0)
    assert outcome.error is not None
    assert outcome.error.finding.layer == "<input>"
    assert outcome.error.finding.step == 1
