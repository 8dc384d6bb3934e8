"""Ceilings of this machine and what bounds the layers of a ResNet-50 and a GPT-2.

On a card: full sizes, in float32 and under bfloat16 autocast, in under five minutes. On a CPU:
the same architectures, shortened and with small batches; `--threads` as you like.

    python tests/benchmarks/roofline.py [--threads N] [--rows N]
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradwatch.roofline import Profile, RooflineOptions, measure_ceilings, profile
from gradwatch.roofline.verdicts import LayerVerdict

CARD = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CARD else "cpu")
OPTIONS = RooflineOptions() if CARD else RooflineOptions(warmup_steps=2, timed_steps=3)


class Subject(NamedTuple):
    """A model and what it is fed."""

    name: str
    model: nn.Module
    batch: Mapping[str, Tensor]


class Autocast(nn.Module):
    """Run a model under bfloat16 autocast."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: Tensor) -> Any:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            return self.model(**batch)


def make_resnet() -> Subject:
    """ResNet-50 on 64 images of 224×224; on a CPU its first two stages on 8 of 96×96."""
    from transformers import ResNetConfig, ResNetForImageClassification

    short: dict[str, Any] = {} if CARD else {"hidden_sizes": [256, 512], "depths": [2, 2]}
    count, size = (64, 224) if CARD else (8, 96)
    model = ResNetForImageClassification(ResNetConfig(**short))
    batch = {
        "pixel_values": torch.randn(count, 3, size, size),
        "labels": torch.zeros(count, dtype=torch.long),
    }
    return Subject(f"ResNet-50{'' if CARD else ', shortened'}", model, batch)


def make_gpt2() -> Subject:
    """GPT-2 (124 M) on 8 × 1024 tokens; on a CPU two of its blocks on 4 × 256."""
    from transformers import GPT2Config, GPT2LMHeadModel

    short: dict[str, Any] = {} if CARD else {"n_layer": 2, "vocab_size": 4096}
    count, length = (8, 1024) if CARD else (4, 256)
    model = GPT2LMHeadModel(GPT2Config(**short, bos_token_id=0, eos_token_id=0))
    tokens = torch.randint(0, 4096, (count, length))
    return Subject(
        f"GPT-2{'' if CARD else ', shortened'}", model, {"input_ids": tokens, "labels": tokens}
    )


def show_ceilings() -> None:
    """Print what the machine can do."""
    dtypes = ("float32", "bfloat16") if CARD else ("float32",)
    begun = time.perf_counter()
    own = measure_ceilings(DEVICE, dtypes, refresh=True)
    took = time.perf_counter() - begun
    print(f"== {own.device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"copy                 {own.copy_bytes_per_second / 1e9:12,.1f} GB/s")
    for dtype, rate in own.matrix_flops_per_second.items():
        print(f"{dtype:<9} products   {rate / 1e9:12,.1f} GFLOP/s, ridge {own.ridge(dtype):,.1f}")
    print(f"smallest kernel      {own.launch_seconds * 1e6:12,.2f} µs   (measured in {took:.2f} s)")


def by_kind_of_module(told: Profile, model: nn.Module) -> Mapping[str, list[LayerVerdict]]:
    """Group layers by the class of their module and their verdict."""
    classes = {name: type(module).__name__ for name, module in model.named_modules()}
    groups: dict[str, list[LayerVerdict]] = defaultdict(list)
    for own in told.layers:
        groups[f"{classes.get(own.layer, own.layer):<32}{own.kind}"].append(own)
    return groups


def show(told: Profile, subject: Subject, rows: int) -> None:
    """Print phases, layers by kind, and the largest kernels."""
    phases = ", ".join(f"{name} {own * 1e3:.1f}" for name, own in told.phases.items())
    print(f"\n== {subject.name}: a step of {told.step_seconds * 1e3:.1f} ms ({phases} ms)")
    backward = sum(own.backward_seconds for own in told.layers)
    measured = told.traced_phases.get("backward", 0.0)
    print(f"   layers' backward {backward * 1e3:.1f} ms of {measured * 1e3:.1f} ms measured")
    print(f"   extra time for the profile {told.overhead_seconds:.2f} s; notes: {told.notes}")
    print(f"{'module':<32}{'verdict':<17}{'layers':>7}{'ms':>9}{'FLOP/B':>8}{'GB/s':>8}"
          f"{'GFLOP/s':>10}{'gain':>7}")  # fmt: skip
    groups = by_kind_of_module(told, subject.model)
    for name, own in sorted(groups.items(), key=lambda item: -total_seconds(item[1])):
        seconds = total_seconds(own) or 1e-12
        moved, flops = sum(each.moved_bytes for each in own), sum(each.flops for each in own)
        print(f"{name:<49}{len(own):>7}{seconds * 1e3:>9.2f}{flops / max(moved, 1):>8.1f}"
              f"{moved / seconds / 1e9:>8.1f}{flops / seconds / 1e9:>10.1f}"
              f"{sum(each.gain_share for each in own):>7.1%}")  # fmt: skip
    for row in told.kernels[:rows]:
        follower = f" → {row.next_kernel}" if row.next_kernel else ""
        print(f"   {row.share:6.1%} {row.count:5.0f} × {row.median_seconds * 1e6:9.1f} µs  "
              f"{row.phase:<9} {row.name[:44]:<45}{row.purpose}{follower}"
              f"{' (could be one)' if row.fusable else ''}")  # fmt: skip


def total_seconds(group: list[LayerVerdict]) -> float:
    """Sum forward and backward."""
    return sum(own.forward_seconds + own.backward_seconds for own in group)


def main() -> None:
    """Measure, profile, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", type=int, default=8, help="kernels to print")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    show_ceilings()
    for make in (make_resnet, make_gpt2):
        subject = make()
        for wrap in (None, Autocast) if CARD else (None,):
            model = (wrap(subject.model) if wrap else subject.model).to(DEVICE).train()
            batch = {name: value.to(DEVICE) for name, value in subject.batch.items()}
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
            told = profile(model, batch, optimizer=optimizer, options=OPTIONS)
            name = f"{subject.name}{', bfloat16 autocast' if wrap else ''}"
            show(told, Subject(name, model, batch), chosen.rows)


if __name__ == "__main__":
    main()
