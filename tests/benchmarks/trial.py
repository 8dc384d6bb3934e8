"""Stock against FusedBackward(auto) against torch.compile, on ViT-B and ResNet-50, one card.

    python tests/benchmarks/trial.py             # bf16-mixed, channels_last; needs a card
    python tests/benchmarks/trial.py --small     # tiny models, on any machine

Prints, for each model, images a second and peak memory of the three, and the table of trials.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from gradwatch.fused.bench import Bench
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.rows import trial_table
from gradwatch.fused.trial import Trial
from gradwatch.fused.wardrobe import Wardrobe
from gradwatch.non_finite.capture import hold
from gradwatch.non_finite.program import ClosureProgram
from gradwatch.ranks import Ranks

WARM_UPS = 10
CLASSES = 1000


def make_vit(*, small: bool) -> nn.Module:
    tiny: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 128, "image_size": 32, "patch_size": 8}  # fmt: skip
    return ViTForImageClassification(
        ViTConfig(**{"num_labels": CLASSES, **(tiny if small else {})})
    )


def make_resnet(*, small: bool) -> nn.Module:
    tiny: dict[str, Any] = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
    return ResNetForImageClassification(
        ResNetConfig(**{"num_labels": CLASSES, **(tiny if small else {})})
    )


class Workload:
    """A model, a batch and an optimizer.

    Args:
        model: Gives logits of pixel values.
        batch: Images a step.
        side: Pixels a side.
        device: Where it runs.
    """

    def __init__(self, model: Any, batch: int, side: int, device: str) -> None:
        torch.manual_seed(0)
        self.device, self.size = device, batch
        self.model = model.to(device).train()
        if any(isinstance(each, nn.Conv2d) for each in model.modules()):
            self.model.to(memory_format=torch.channels_last)
        x = torch.randn(batch, 3, side, side, device=device)
        self.batch = (
            x.contiguous(memory_format=torch.channels_last),
            torch.randint(0, CLASSES, (batch,), device=device),
        )
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def loss(self, batch: Any, model: Callable[..., Any] | None = None) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16):
            logits = (model or self.model)(pixel_values=batch[0]).logits
            return F.cross_entropy(logits, batch[1])

    def step(self, model: Callable[..., Any] | None = None) -> float:
        self._wait()
        begun = time.perf_counter()
        self.optimizer.zero_grad()
        self.loss(self.batch, model).backward()
        self.optimizer.step()
        self._wait()
        return time.perf_counter() - begun

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def rate(self, steps: int, model: Callable[..., Any] | None = None) -> tuple[float, float]:
        """Give images a second and the peak of allocated memory in MiB (nan on a CPU)."""
        for _ in range(WARM_UPS if self.device == "cuda" else 1):
            self.step(model)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = median(self.step(model) for _ in range(steps))
        peak = torch.cuda.max_memory_allocated() / 2**20 if self.device == "cuda" else float("nan")
        return self.size / seconds, peak


def tried(work: Workload, wardrobe: Wardrobe, options: FusedBackwardOptions) -> None:
    held = hold(work.batch)
    bench = Bench(work.model, held, ClosureProgram(work.loss, held.batch))
    begun = time.perf_counter()
    result = Trial(bench, options, Ranks()).run()
    wardrobe.wear(result.kept)
    table = trial_table(result.rows, WARM_UPS)
    print(f"\n{table.title}; the trial took {time.perf_counter() - begun:.1f} s")
    print(" | ".join(table.columns))
    for row in table.rows:
        print(" | ".join(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))


def compared(name: str, work: Workload, steps: int, *, small: bool, compiled: bool) -> None:
    print(f"\n== {name}: {work.size} images a step, bf16-mixed, {work.device}")
    told = {"stock": work.rate(steps)}
    options = FusedBackwardOptions(min_elements=1 if small else 1 << 20, max_seconds=150.0)
    wardrobe = Wardrobe()
    tried(work, wardrobe, options)
    told["auto"] = work.rate(steps)
    wardrobe.take_off()
    if compiled:
        told["torch.compile"] = work.rate(steps, torch.compile(work.model))
    print(f"\n{'':<14}{'images/s':>10}{'peak MiB':>10}")
    for variant, (rate, peak) in told.items():
        print(f"{variant:<14}{rate:>10.1f}{peak:>10.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny models, any machine")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not asked.small:
        parser.error("there is no card: --small runs anywhere")
    batch, side = (8, 32) if asked.small else (asked.batch, 224)
    for name, make in (("ViT-B", make_vit), ("ResNet-50", make_resnet)):
        work = Workload(make(small=asked.small), batch, side, device)
        compared(name, work, asked.steps, small=asked.small, compiled=not asked.no_compile)


if __name__ == "__main__":
    main()
