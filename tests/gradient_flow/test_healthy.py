"""Healthy trainings of many kinds: not one word of warning in sixty steps and more."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwatch import Finding

Trained = Callable[..., tuple[Finding, ...]]
STEPS = 64


class Recurrent(nn.Module):
    """Read a sequence and answer from its end."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.rnn, self.head = kind(6, 12, num_layers=2, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Words(nn.Module):
    """Embed words, let them attend to each other, and answer from their mean."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True, norm_first=True)
        self.embed = nn.Embedding(50, 16)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(words)).mean(1))


class Experts(nn.Module):
    """Route each sample to the best of several experts; some idle for a step or for ever."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(8, count), nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        weight, choice = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = choice == number
            if rows.any():
                out[rows] = torch.tanh(expert(x[rows])) * weight[rows, None]
        return self.head(x + out)


class LowRank(nn.Module):
    """A frozen layer with a low-rank branch that begins at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 2, bias=False), nn.Linear(2, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.base(x) + self.up(self.down(x)))


class ZeroGate(nn.Module):
    """A residual branch behind a gate that begins at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * self.branch(x)


def make_mlp() -> nn.Module:
    layers = [layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def make_cnn() -> nn.Module:
    def block(inner: int, outer: int) -> list[nn.Module]:
        return [nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]

    body = [*block(1, 8), *block(8, 8), nn.MaxPool2d(2), *block(8, 16)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))


def make_deep_tanh() -> nn.Module:
    hidden = [nn.Linear(8, 8) for _ in range(12)]
    for layer in hidden:
        nn.init.xavier_normal_(layer.weight, 5 / 3)
    return nn.Sequential(*(m for layer in hidden for m in (layer, nn.Tanh())), nn.Linear(8, 3))


def make_batches(model: nn.Module, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[type, tuple[int, ...]] = {Recurrent: (16, 7, 6)}
    image = isinstance(next(model.children()), nn.Conv2d)
    shape = (16, 1, 8, 8) if image else shapes.get(type(model), (16, 8))
    for _ in range(STEPS):
        y = torch.randint(0, 3, (16,), generator=generator)
        if isinstance(model, Words):
            x = torch.randint(0, 16, (16, 9), generator=generator) + 17 * y[:, None]
        else:
            x = torch.randn(*shape, generator=generator) + y.reshape(-1, *[1] * (len(shape) - 1))
        yield x, y


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": make_mlp,
    "cnn": make_cnn,
    "deep tanh": make_deep_tanh,
    "transformer": lambda: Words(2),
    "deep transformer": lambda: Words(5),
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "experts": lambda: Experts(8),
    "low rank": lambda: nn.Sequential(LowRank(8), LowRank(8), nn.Linear(8, 3)),
    "zero gate": lambda: nn.Sequential(ZeroGate(8), ZeroGate(8), nn.Linear(8, 3)),
    "frozen part": lambda: nn.Sequential(
        nn.Linear(8, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 3)
    ),
}


# The higher rate is at the edge: it learns everything, is thrown off and recovers.
@pytest.mark.parametrize(("rate", "seed"), [(3e-3, 0), (1e-2, 1), (3e-2, 0)])
@pytest.mark.parametrize("kind", list(MODELS))
def test_a_healthy_training_is_told_nothing_alarming(
    trained: Trained, kind: str, rate: float, seed: int
) -> None:
    torch.manual_seed(seed)
    model = MODELS[kind]()
    losses: list[float] = []

    def loss(out: Any, target: Tensor) -> Tensor:
        value = functional.cross_entropy(out, target)
        losses.append(value.item())
        return value

    findings = trained(model, make_batches(model, seed), loss=loss, rate=rate)
    assert min(losses) < losses[0]
    assert [finding.lines() for finding in findings if finding.severity != "info"] == []


@pytest.mark.parametrize("kind", ["mlp", "cnn", "transformer"])
def test_a_training_that_has_learned_everything_is_told_nothing_alarming(
    trained: Trained, kind: str
) -> None:
    model = MODELS[kind]()
    batch = next(make_batches(model))
    findings = trained(model, [batch] * 200, loss=functional.cross_entropy, rate=1e-2)
    assert [finding.lines() for finding in findings if finding.severity != "info"] == []
