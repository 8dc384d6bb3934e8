"""Gradients that really die, fall off a cliff, pile up, explode or spike: each is told in time."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gradwatch import Finding, watch
from gradwatch.callbacks import GradWatch

Trained = Callable[..., tuple[Finding, ...]]


def make_batches(count: int, width: int = 8, outputs: int = 3) -> Any:
    return [(torch.randn(16, width), torch.randn(16, outputs)) for _ in range(count)]


def only(findings: tuple[Finding, ...], rule: str) -> Finding:
    found = [finding for finding in findings if finding.rule == rule]
    assert len(found) == 1, [finding.lines()[0] for finding in findings]
    return found[0]


class Unrolled(nn.Module):
    """Multiply by one matrix again and again."""

    def __init__(self, steps: int, gain: float) -> None:
        super().__init__()
        self.cell, self.head, self.steps = nn.Linear(8, 8, bias=False), nn.Linear(8, 3), steps
        nn.init.orthogonal_(self.cell.weight, gain)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = self.cell(x)
        return self.head(x)


class Forgetful(pl.LightningModule):
    """Optimize by hand and never clear the gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        self.manual_backward((self.net(batch[0]) - batch[1]).square().mean())
        optimizer.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


@pytest.mark.parametrize("where", [0, 2])
def test_a_layer_whose_units_are_all_off_is_dead(trained: Trained, where: int) -> None:
    net = nn.Sequential(
        nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3)
    )
    dead: Any = net[where]
    with torch.no_grad():
        dead.weight.zero_()
        dead.bias.fill_(-1.0)
    findings = trained(net, make_batches(12))
    told = {finding.layer for finding in findings if finding.rule == "dead"}
    assert str(where) in told
    assert {finding.rule for finding in findings} == {"dead"}
    assert all(finding.step == 4 for finding in findings)


def test_a_scaled_down_layer_makes_a_cliff_that_is_named(trained: Trained) -> None:
    class Tiny(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1e-7 + 1e-3

    layers = [nn.Linear(8, 8) for _ in range(8)]
    net = nn.Sequential(*layers[:4], Tiny(), *layers[4:], nn.Linear(8, 3))
    finding = only(trained(net, make_batches(8), rate=1e-6), "vanishing")
    assert finding.layer == "3"
    assert finding.evidence["next_strong_layer"] == "5"
    assert finding.evidence["layers_affected"] == 4
    assert "cliff" in finding.summary


def test_a_plain_loop_that_never_clears_is_told_at_its_second_step(trained: Trained) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    sgd = torch.optim.SGD(net.parameters(), lr=1e-4)
    finding = only(trained(net, make_batches(6), clear=False, optimizer=sgd), "never_cleared")
    assert finding.step == 1
    assert "zero_grad" in finding.remedy


def test_manual_optimization_that_never_clears_is_told_at_its_second_step() -> None:
    guard = GradWatch(console=False, record=False)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "max_epochs": 1}
    quiet |= {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = pl.Trainer(callbacks=[guard], **quiet)
    trainer.fit(Forgetful(), DataLoader(make_batches(4), batch_size=None))
    assert only(guard.findings, "never_cleared").step == 1


def test_accumulation_is_no_never_cleared_gradient(trained: Trained) -> None:
    net = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    class EverySecond:
        """Pass on every second call, as a loop that accumulates does."""

        calls = 0

        def step(self) -> None:
            self.calls += 1
            if self.calls % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

    stepper = EverySecond()
    with watch(net, optimizer, console=False) as watched:
        for x, y in make_batches(8):
            (net(x) - y).square().mean().backward()
            stepper.step()
    assert watched.findings == ()


@pytest.mark.parametrize("steps", [11, 12])
def test_a_recurrence_that_amplifies_is_told_before_it_overflows(
    trained: Trained, steps: int
) -> None:
    net = Unrolled(steps, 1.0)

    class Growing(torch.optim.SGD):
        """Make the matrix amplify a little more at each step."""

        def step(self, closure: Any = None) -> Any:
            with torch.no_grad():
                net.cell.weight.mul_(1.2)
            return super().step(closure)

    optimizer = Growing(net.parameters(), lr=0.0)
    findings = trained(net, make_batches(12), optimizer=optimizer)
    finding = only(findings, "exploding")
    assert finding.layer == "cell"
    assert float(finding.evidence["grown_by"]) >= 100
    assert int(finding.evidence["since_step"]) <= 3
    assert finding.step < 25


def test_a_single_spike_is_told_at_its_step(trained: Trained) -> None:
    batches = make_batches(60)
    batches[40] = (batches[40][0] * 1e4, batches[40][1])
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    sgd = torch.optim.SGD(net.parameters(), lr=1e-12)
    finding = only(trained(net, batches, optimizer=sgd), "exploding")
    assert finding.step == 40
    assert "jumped in one step" in finding.summary
    assert float(finding.evidence["times_the_highest_before"]) > 1e3
