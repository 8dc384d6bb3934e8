"""What a replay costs, in steps of the same network: two runs, the search, the bundle.

Run: python tests/benchmarks/replay.py [--rounds 7]

A fault is planted in the last layer but one; the time of a step is its forward, backward and
update. Aim: a replay takes at most 30 steps' time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradwatch.non_finite.blame import Blame
from gradwatch.non_finite.bundle import Tried, keep_bundle
from gradwatch.non_finite.capture import hold
from gradwatch.non_finite.describe import finding_of
from gradwatch.non_finite.program import ClosureProgram, Suspects
from gradwatch.non_finite.recipe import Recipe
from gradwatch.non_finite.replay import investigate

AIM_STEPS = 30


class Rooted(nn.Module):
    """The root of what a mask has set to zero; healthy as long as something is added to it."""

    eps = 1e-3

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt((x * (x > x.mean())).abs() + self.eps)


class Checkpointed(nn.Module):
    """Blocks whose activations are computed again in the backward pass."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def make_perceptron() -> nn.Module:
    hidden = [each for _ in range(6) for each in (nn.Linear(512, 512), nn.GELU())]
    return nn.Sequential(*hidden, Rooted(), nn.Linear(512, 10))


def make_small() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), Rooted(), nn.Linear(16, 1)
    )


def make_convolutions() -> nn.Module:
    def block(wide: int) -> list[nn.Module]:
        return [nn.Conv2d(wide, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]

    head = (nn.AdaptiveAvgPool2d(4), nn.Flatten(), Rooted(), nn.Linear(512, 10))
    return nn.Sequential(*block(3), *block(32), *block(32), *block(32), *head)


def make_encoder(*, again: bool = False) -> nn.Module:
    options = {"batch_first": True, "dropout": 0.1}
    layers = [nn.TransformerEncoderLayer(128, 4, 512, **options) for _ in range(4)]  # type: ignore[arg-type]
    body = Checkpointed(*layers) if again else nn.Sequential(*layers)
    return nn.Sequential(body, Rooted(), nn.Linear(128, 10))


class Cost(NamedTuple):
    """Seconds of one network, and the bytes of its bundle."""

    step: float
    replay: float
    bundle: float
    file_bytes: int


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron, 5 layers of 16": (make_small, (8, 16)),
    "perceptron, 14 layers": (make_perceptron, (64, 512)),
    "convolutions, 16 layers": (make_convolutions, (16, 3, 32, 32)),
    "transformer, 4 blocks": (make_encoder, (8, 64, 128)),
    "the same, checkpointed": (lambda: make_encoder(again=True), (8, 64, 128)),
}


def time_of(action: Callable[[], object]) -> float:
    began = perf_counter()
    action()
    return perf_counter() - began


def measure(make: Callable[[], nn.Module], shape: tuple[int, ...], rounds: int) -> Cost:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)

    def run(x: Tensor) -> Tensor:
        loss: Tensor = model(x).pow(2).mean()
        return loss

    def step() -> None:
        optimizer.zero_grad()
        run(torch.randn(shape)).backward()
        optimizer.step()

    def replay() -> None:
        held = hold(torch.randn(shape))
        blames.append(investigate(model, held, ClosureProgram(run, held.batch), Suspects()))

    blames: list[Blame] = []
    step()
    steps = median(time_of(step) for _ in range(3 * rounds))
    next(each for each in model.modules() if isinstance(each, Rooted)).eps = 0.0
    replay()
    replays = median(time_of(replay) for _ in range(rounds))
    blame = blames[-1]
    assert "sqrt" in blame.operation, blame
    tried = Tried(
        model=model,
        held=hold(((torch.randn(shape),), {})),
        recipe=Recipe(kind="model"),
        suspects=Suspects(),
        blame=blame,
    )
    with tempfile.TemporaryDirectory() as folder:
        began = perf_counter()
        kept = keep_bundle(tried, finding_of(blame, 0), Path(folder), 1 << 28)
        seconds = perf_counter() - began
        return Cost(steps, replays, seconds, Path(kept.words).stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print("| network | step, ms | replay, ms | in steps | bundle, ms | bundle, MB |")
    print("|---|---|---|---|---|---|")
    for name, (make, shape) in NETWORKS.items():
        cost = measure(make, shape, rounds)
        told = (1e3 * cost.step, 1e3 * cost.replay, cost.replay / cost.step, 1e3 * cost.bundle)
        numbers = " | ".join(f"{number:.1f}" for number in told)
        print(f"| {name} | {numbers} | {cost.file_bytes / 1e6:.1f} |")
    print(f"aim: at most {AIM_STEPS} steps")


if __name__ == "__main__":
    main()
