"""Bundled kernels and Liger's for one layer, and training through Liger's to the end."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from gradwatch.fused import bench
from gradwatch.fused.liger import Liger
from gradwatch.fused.providers import Bundled, Offer, Provider
from gradwatch.fused.site import Site
from gradwatch.fused.trial import Result
from tests.fused.lab import CLOCK, QUICK, named, run_trial
from tests.kit import Calm, build, fingerprint, fit, make_loader


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trials measure the lab's time: who is faster is settled here, not by the interpreter."""
    monkeypatch.setattr(bench, "time", CLOCK)


class HandWritten(nn.Module):
    """A norm as models write it, which takes its time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        CLOCK.spend(0.008)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Paced:
    """A provider whose functions take the time they are given."""

    def __init__(self, provider: Provider, seconds: float) -> None:
        self.name, self._provider, self._seconds = provider.name, provider, seconds

    def propose(self, site: Site) -> Offer:
        offer = self._provider.propose(site)
        if not callable(offer):
            return offer

        def forward(*args: Any, **kwargs: Any) -> Any:
            CLOCK.spend(self._seconds)
            return offer(*args, **kwargs)

        return named(forward)


def compete(bundled: float, liger: float, **options: Any) -> tuple[Result, list[tuple[str, str]]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), HandWritten(16), nn.Linear(16, 3))
    providers = [Paced(Bundled(), bundled), Paced(Liger(), liger)]
    result = run_trial(model, providers, regression_steps=1, **options)
    told: list[tuple[str, str]] = [
        (row.provider, row.verdict) for row in result.rows if row.kind == "RMSNorm by hand"
    ]
    return result, told


def test_the_faster_of_two_takes_the_others_place() -> None:
    result, told = compete(bundled=0.004, liger=0.001)
    assert told == [("gradwatch", "replaced"), ("liger", "kept")]
    assert [each.provider for each in result.kept] == ["liger"]


def test_one_that_is_slower_than_the_first_is_rolled_back() -> None:
    result, told = compete(bundled=0.001, liger=0.004)
    assert told == [("gradwatch", "kept"), ("liger", "rolled back")]
    assert [each.provider for each in result.kept] == ["gradwatch"]


def test_the_first_to_be_forced_stays() -> None:
    result, told = compete(bundled=0.004, liger=0.001, mode="force")
    assert told == [("gradwatch", "kept"), ("liger", "not tried")]
    assert [each.provider for each in result.kept] == ["gradwatch"]


class Gated(Calm):
    """A norm, a gate and a loss that Liger takes over."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(16, 16), nn.Linear(16, 16)
        self.block = Block(self.gate, self.up)
        self.loss = nn.CrossEntropyLoss()
        self.hits: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.hidden(self.act(self.conv(x)).flatten(1)))
        return self.head(self.block(h))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self(batch[0])
        loss = self.loss(logits, batch[1])
        self.hits.append((logits.argmax(-1) == batch[1]).float().mean())
        self.losses.append(loss.detach().clone())
        return loss


class Block(nn.Module):
    """What a decoder's MLP does in the middle."""

    def __init__(self, gate: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.gate, self.up = gate, up

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.gate(x)) * self.up(x)


def test_forced_training_follows_the_stock_course_and_its_accuracy_is_that_of_the_logits() -> None:
    module, stock = build(Gated), build(Gated)
    options = {"mode": "force", "after_steps": 1, "providers": ("liger",)}
    callback = FusedBackward(FusedBackwardOptions(**QUICK | options), sinks=[MemorySink()])
    runs = [
        fingerprint(fit(each, own, make_loader(), max_epochs=1), each)
        for each, own in ((stock, []), (module, [callback]))
    ]
    kept = callback.parts[0].state_dict()["kept"]
    assert sorted((layer, kind, who) for layer, kind, who in kept) == [
        ("block", "silu gate", "liger"),
        ("loss", "CrossEntropyLoss", "liger"),
        ("norm", "LayerNorm", "liger"),
    ]
    for own, other in zip(runs[1]["losses"], runs[0]["losses"], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    assert torch.equal(torch.stack(module.hits), torch.stack(stock.hits))
