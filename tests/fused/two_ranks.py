"""Trials in one of two processes that train together; run as a script, once a rank."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from gradwatch.fused import bench
from tests.fused.lab import CLOCK, QUICK, Offers, SlowNorm, quick
from tests.kit import Calm, ResumableLoader, build, fit, make_samples

RANK = int(os.environ.get("RANK", "0"))


class Apart(Calm):
    """Has a layer norm that takes its time, and no collective of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = SlowNorm(16)
        del self.bn  # which Calm does not use, and two processes will not have it so


class Together(Apart):
    """Adds its loss up over the ranks in each step, as a metric does."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        return loss


def right(self: nn.LayerNorm, x: Tensor) -> Tensor:
    return quick(self, x)


def wrong_on_rank_1(self: nn.LayerNorm, x: Tensor) -> Tensor:
    return quick(self, x) * (1.0 + 0.01 * RANK)


def slow_on_rank_1(self: nn.LayerNorm, x: Tensor) -> Tensor:
    CLOCK.spend(0.02 * RANK)
    return quick(self, x)


def raises_later_on_rank_1() -> Callable[..., Tensor]:
    calls = [0]

    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        calls[0] += 1
        if RANK and calls[0] > 8:
            raise RuntimeError("out of registers")
        return quick(self, x)

    return forward


def tried(forward: Callable[..., Tensor], kind: type[Apart]) -> dict[str, Any]:
    forward.__name__ = "forward"
    sink = MemorySink()
    options = FusedBackwardOptions(
        **{**QUICK, "after_steps": 2, "providers": (Offers(SlowNorm, forward),)}
    )
    callback = FusedBackward(options, sinks=[sink])
    module = build(kind)
    own = ResumableLoader(tuple(part[RANK::2] for part in make_samples(56)))
    fit(module, [callback], own, strategy="ddp", devices=2)
    kept = callback.parts[0].state_dict()["kept"]
    told = [(row[4], row[5]) for table in sink.tables for row in table.rows]
    weights = [each.detach().clone() for each in module.parameters()]
    return {"kept": kept, "told": told, "weights": weights}


SCENES: dict[str, tuple[Callable[..., Tensor], type[Apart]]] = {
    "right": (right, Together),
    "wrong": (wrong_on_rank_1, Together),
    "slow": (slow_on_rank_1, Together),
    "raises": (raises_later_on_rank_1(), Apart),
}


def main(folder: Path) -> None:
    bench.time = CLOCK  # type: ignore[attr-defined,assignment]
    results = {name: tried(*scene) for name, scene in SCENES.items()}
    torch.save(results, folder / f"{RANK}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
