"""Fixed rate against the two SNR rules, on scikit-learn's digits, with SGD and with AdamW.

Run: python tests/benchmarks/adaptive_lr.py

Each optimizer runs at four base rates, because a rule that lifts a rate looks good on one that
is too low. The same seeds, batches and number of steps everywhere. Legend: B batch, F features.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import NamedTuple

import torch
from rich.progress import track
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from gradwatch.adaptive_lr import (
    AdaptiveLearningRateOptions,
    PendingRates,
    init,
    snr,
    update,
)

OPTIONS: dict[str, AdaptiveLearningRateOptions | None] = {
    "fixed": None,
    "inverse": AdaptiveLearningRateOptions(rule="inverse"),
    "proportional": AdaptiveLearningRateOptions(rule="proportional"),
}
RATES = {"SGD": (0.01, 0.1, 0.3, 1.0), "AdamW": (0.0001, 0.001, 0.01, 0.03)}
TRAIN, BATCH = 1300, 64


class Outcome(NamedTuple):
    """What one run came to."""

    loss: float
    accuracy: float
    snr: float
    factor: float


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of the table, run once a seed."""

    optimizer: str
    rate: float
    rule: str

    def make(self, model: nn.Module) -> Optimizer:
        """Build the optimizer; decay and momentum at usual values."""
        if self.optimizer == "SGD":
            return torch.optim.SGD(model.parameters(), lr=self.rate, momentum=0.9)
        return torch.optim.AdamW(model.parameters(), lr=self.rate)


class Data(NamedTuple):
    """Digits, split after a fixed shuffle."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load() -> Data:
    """Load the 1,797 images of 8×8, scaled to 0 … 1."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return Data(images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:])


def batches(data: Data, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw the same batches for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(TRAIN, (BATCH,), generator=generator)
        yield data.train_images[rows], data.train_labels[rows]


@torch.no_grad()
def norm(tensors: Sequence[Tensor | None]) -> float:
    """Give the Frobenius norm over several tensors."""
    return float(torch.stack([t.norm() for t in tensors if t is not None]).norm())


def make_follower(
    optimizer: Optimizer, options: AdaptiveLearningRateOptions
) -> Callable[[], tuple[float, float]]:
    """Give a function that scales the rate of the update that follows."""
    weights = [p for p in optimizer.param_groups[0]["params"] if p.ndim > 1]
    pending, state = PendingRates(), init()

    def follow() -> tuple[float, float]:
        nonlocal state
        ratio = snr(norm(weights), norm([p.grad for p in weights]), options.floor)
        factor, state = update(ratio, state, options)
        pending.apply(optimizer, [factor])
        return ratio, factor

    return follow


def run(setting: Setting, data: Data, seed: int, steps: int) -> Outcome:
    """Train once and measure on the held-out images."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    model.append(nn.Linear(32, 10))
    optimizer = setting.make(model)
    options = OPTIONS[setting.rule]
    measured = options or AdaptiveLearningRateOptions(bounds=(1.0, 1.0))
    follow = make_follower(optimizer, measured)
    followed = []
    for x_BF, y_B in batches(data, seed, steps):
        optimizer.zero_grad()
        loss: Tensor = cross_entropy(model(x_BF), y_B)
        loss.backward()
        followed.append(follow())
        optimizer.step()
    return evaluate(model, data, followed)


@torch.no_grad()
def evaluate(model: nn.Module, data: Data, followed: list[tuple[float, float]]) -> Outcome:
    """Measure the training loss and the held-out accuracy."""
    right = model(data.test_images).argmax(1) == data.test_labels
    return Outcome(
        loss=float(cross_entropy(model(data.train_images), data.train_labels)),
        accuracy=100 * float(right.float().mean()),
        snr=median(ratio for ratio, _ in followed if math.isfinite(ratio)),
        factor=median(factor for _, factor in followed),
    )


def row(setting: Setting, outcomes: list[Outcome]) -> str:
    """Write one row of the table in Markdown."""
    accuracies = [outcome.accuracy for outcome in outcomes]
    cells = (
        setting.optimizer,
        f"{setting.rate:g}",
        setting.rule,
        f"{mean(o.loss for o in outcomes):.4f}",
        f"{mean(accuracies):.1f} ({min(accuracies):.1f} … {max(accuracies):.1f})",
        f"{median(o.snr for o in outcomes):.3g}",
        f"{median(o.factor for o in outcomes):.3g}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run every setting with every seed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    data = load()
    settings = [
        Setting(optimizer=optimizer, rate=rate, rule=rule)
        for optimizer, rates in RATES.items()
        for rate in rates
        for rule in OPTIONS
    ]
    rows = [
        row(setting, [run(setting, data, seed, arguments.steps) for seed in range(arguments.seeds)])
        for setting in track(settings, description="training")
    ]
    print("| optimizer | base rate | rule | train loss | test accuracy, % | SNR | factor |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
