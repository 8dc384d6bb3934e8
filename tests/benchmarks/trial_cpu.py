"""The table of trials of a transformer and of a CNN on a CPU, where no kernel of ours runs.

Run: OMP_NUM_THREADS=1 python tests/benchmarks/trial_cpu.py

Torch's own fused norm competes for norms written by hand, channels_last for the convolutions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, ResNetConfig, ResNetForImageClassification

from gradwatch.fused.bench import Bench
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.rows import trial_table
from gradwatch.fused.trial import Trial
from gradwatch.non_finite.capture import hold
from gradwatch.non_finite.program import ClosureProgram
from gradwatch.ranks import Ranks

OPTIONS = FusedBackwardOptions(min_elements=1 << 12, most_pairs=24, profile=False)


def try_all(name: str, model: nn.Module, batch: Tensor, loss: Callable[[Any], Any]) -> None:
    """Run the trial of one step and print its table."""
    held = hold(batch)
    bench = Bench(model, held, ClosureProgram(loss, held.batch))
    table = trial_table(Trial(bench, OPTIONS, Ranks()).run(None).rows, 0)
    print(f"\n{name}: {table.title}\n")
    print(f"| {' | '.join(table.columns)} |\n|{'---|' * len(table.columns)}")
    for row in table.rows:
        cells = ("" if cell is None else cell for cell in row)
        told = (f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells)
        print(f"| {' | '.join(told)} |")


def main() -> None:
    """Try both."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    llama = LlamaForCausalLM(LlamaConfig(**shape, intermediate_size=512, vocab_size=1000))
    tokens = torch.randint(0, 1000, (4, 128))
    try_all("Llama, 4 x 256", llama, tokens, lambda ids: llama(input_ids=ids, labels=ids).loss)
    stages: dict[str, Any] = {"embedding_size": 32, "hidden_sizes": [64, 128], "depths": [2, 2]}
    resnet = ResNetForImageClassification(ResNetConfig(**{**stages, "num_labels": 10}))
    images = torch.randn(8, 3, 64, 64)
    try_all(
        "ResNet, two stages", resnet, images,
        lambda pixels: resnet(pixel_values=pixels).logits.logsumexp(-1).mean(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
