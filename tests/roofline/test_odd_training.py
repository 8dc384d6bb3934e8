"""Odd models in a loop of one's own: looked at by memory and roofline, trained as without them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradwatch
from gradwatch import MemorySink
from gradwatch.hooks import tensors_in
from gradwatch.roofline import RooflineOptions, profile

QUICK = RooflineOptions(warmup_steps=1, timed_steps=1, traced_steps=1)
ROWS = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


@dataclass
class Batch:
    x: Tensor
    times: int = 2


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x) @ self.weight


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"left": nn.Linear(8, 4), "right": nn.Linear(8, 2)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: head(x) for name, head in self.heads.items()}


class Repeats(nn.Module):
    """Takes a batch object of the user's own, or a tensor and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Batch | Tensor, times: int = 1) -> Tensor:
        out, times = (x.x, x.times) if isinstance(x, Batch) else (x, times)
        for _ in range(times):
            out = self.fc(out)
        return out


class Generates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.noise, self.fc = nn.Parameter(torch.randn(4, 8)), nn.Linear(8, 2)

    def forward(self, _: None) -> Tensor:
        out: Tensor = self.fc(self.noise)
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 8, 2, bidirectional=True, dropout=0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out, state = self.gru(x)
        return out, state


class PlusHalf(nn.Linear):
    """A linear layer in bfloat16, with a norm in float32 behind it."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.bfloat16()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(super().forward(x.bfloat16()).float())
        return out


def sparse() -> nn.Module:
    return nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Linear(8, 2))


ODD: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "complex": (Complex, (ROWS,)),
    "a dict of heads": (Heads, (ROWS,)),
    "a batch of one's own": (Repeats, (Batch(ROWS),)),
    "a python number": (Repeats, (ROWS, 3)),
    "no batch": (Generates, (None,)),
    "recurrent": (Recurrent, (ROWS.view(2, 2, 8),)),
    "half on a CPU": (PlusHalf, (ROWS,)),
    "sparse": (sparse, (torch.arange(5),)),
}


def real(out: Any) -> Tensor:
    return torch.stack([each.abs().float().square().mean() for each in tensors_in(out)]).sum()


def train(make: Callable[[], nn.Module], batch: tuple[Any, ...], sink: MemorySink | None) -> Any:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watched = sink and gradwatch.watch(
        model, optimizer, memory=True, roofline=QUICK, sinks=[sink], console=False
    )
    for _ in range(6):
        optimizer.zero_grad()
        real(model(*batch)).backward()
        optimizer.step()
    if watched:
        watched.close()
    return {**model.state_dict(), "rng": torch.get_rng_state()}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_model_is_looked_at_and_trained_to_the_same_bits(name: str) -> None:
    sink = MemorySink()
    watched, plain = train(*ODD[name], sink), train(*ODD[name], None)
    assert all(torch.equal(watched[key], plain[key]) for key in plain)
    tables = {table.name: table for table in sink.tables}
    assert tables["roofline"].rows
    assert not [finding for finding in sink.findings if finding.severity != "info"]


def test_a_model_without_parameters_is_profiled_by_its_input() -> None:
    x = torch.ones(4, 8, requires_grad=True)
    told = profile(nn.Sequential(nn.Tanh(), nn.Softmax(-1)), x, options=QUICK)
    assert [own.layer for own in told.layers] == ["0", "1", "<loss>"]
    assert x.grad is None
