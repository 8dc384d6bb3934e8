"""One fault is one finding: what two rules see of it is told together."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradwatch
from gradwatch import Finding
from gradwatch.reasons import Reasons
from tests.graph.conftest import Plain
from tests.kit import ResumableLoader, SavesAt, fit, make_samples, watcher


class Scaled(nn.Module):
    """Multiply by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Experts(nn.Module):
    """Send each sample to the best of many experts: most idle for a while, now these, now those."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(8, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, best = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = best == number
            if rows.any():
                out[rows] = expert(x[rows]) * weight[rows, None]
        return x + out


def sigmoids(count: int, gain: float = 1.0, *, cliff: int = -1) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number in range(count):
        linear = nn.Linear(16, 16)
        with torch.no_grad():
            linear.weight.mul_(gain)
            linear.bias.copy_(-linear.weight.sum(1) / 2)
        layers += [linear, Scaled(1e-9 if number == cliff else 1.0), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(16, 3))


def train(model: nn.Module, steps: int, width: int = 16) -> tuple[Finding, ...]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(0)
    with gradwatch.watch(model, optimizer, console=False) as watched:
        for _ in range(steps):
            optimizer.zero_grad()
            x = torch.randn(8, width, generator=draw)
            F.cross_entropy(model(x), torch.randint(0, 3, (8,), generator=draw)).backward()
            optimizer.step()
    return watched.findings


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_a_gradient_that_fades_through_sigmoids_is_told_with_their_run() -> None:
    (finding,) = train(sigmoids(14), 40)
    assert (finding.rule, finding.layer, finding.step) == ("vanishing", "0", 4)
    assert finding.summary.endswith("; its gradient comes through 14 saturating functions in a row")
    assert finding.evidence["functions"] == "sigmoid 14"
    assert finding.evidence["product_of_largest_derivatives"] == pytest.approx(0.25**14)
    assert str(finding.evidence["chain"]).startswith("<loss> → 41 (sigmoid) → 38 (sigmoid) → …")
    assert float(finding.evidence["ratio_to_strongest"]) < 1e-5


def test_a_run_that_its_gradient_survives_is_told_for_itself_once_that_is_known() -> None:
    model = sigmoids(9, gain=6.0)
    assert train(copy.deepcopy(model), 4)[0].rule == "saturating_chain"
    (finding,) = train(model, 30)
    assert (finding.rule, finding.layer) == ("saturating_chain", "0")


def test_a_run_that_ends_sooner_than_that_is_known_tells_the_chain() -> None:
    (finding,) = train(sigmoids(14), 2)
    assert (finding.rule, finding.step) == ("saturating_chain", 0)


def test_a_cliff_is_not_laid_at_the_door_of_the_sigmoids_round_it() -> None:
    findings = train(sigmoids(10, gain=6.0, cliff=4), 12)
    assert {finding.rule for finding in findings} == {"vanishing", "saturating_chain"}
    cliff = next(finding for finding in findings if finding.rule == "vanishing")
    assert "falls off a cliff" in cliff.summary
    assert "functions" not in cliff.evidence


def test_a_resumed_run_does_not_tell_it_again() -> None:
    def module() -> Plain:
        return Plain(nn.Sequential(nn.Linear(36, 16), *sigmoids(14)))

    (watch, told), (again, retold) = watcher(), watcher()
    samples = make_samples()
    fit(module(), [watch, SavesAt(6)], ResumableLoader(samples))
    fit(module(), [again], ResumableLoader(samples), ckpt_path="middle.ckpt")
    assert [(finding.rule, finding.step) for finding in told.findings] == [("vanishing", 4)]
    assert retold.findings == []


def test_experts_that_idle_by_turns_are_told_once_in_all_blocks() -> None:
    findings = train(nn.Sequential(*[Experts(16) for _ in range(3)], nn.Linear(8, 3)), 60, width=8)
    (finding,) = findings
    assert (finding.rule, finding.severity, finding.step) == ("unused", "info", 4)
    assert finding.evidence["told_once_for"] == "*.experts.*.0, *.experts.*.2"


def test_reasons_are_left_behind_where_a_part_is_copied() -> None:
    reasons = Reasons()
    reasons.offer("vanishing", lambda _: None)
    for twin in (copy.deepcopy(reasons), pickle.loads(pickle.dumps(reasons))):  # noqa: S301
        assert vars(twin) == vars(Reasons())
