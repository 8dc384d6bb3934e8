"""Train on although some images are broken: their batches are skipped, and named.

Run: python examples/skip_bad_batches.py
"""

import torch
from digits import Digits, images, quiet
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, TensorDataset

from gradwatch import MemorySink, NonFiniteOptions
from gradwatch.callbacks import GradWatch


def broken_images(
    broken: tuple[int, ...] = (100, 900, 901),
) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Give the digits in their order, some with a NaN pixel, as a bad decoder leaves it."""
    pixels, labels = images().dataset[:]
    pixels = pixels.clone()
    pixels[list(broken), 4, 4] = float("nan")
    return DataLoader(TensorDataset(pixels, labels), batch_size=64)


def main(max_steps: int = 60) -> None:
    quiet()
    torch.manual_seed(0)
    model, told = Digits(), MemorySink()
    watch = GradWatch(non_finite=NonFiniteOptions(policy="skip"), console=False, sinks=[told])
    Trainer(
        callbacks=[watch], max_steps=max_steps, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir="runs",
    ).fit(model, broken_images())  # fmt: skip
    for finding in told.findings:
        print(f"{finding.lines()[0]}\n  cause     {finding.cause}")
    finite = all(weight.isfinite().all() for weight in model.parameters())
    print(f"{max_steps} steps, {told.records[-1].scalars['grad/skipped']:.0f} of them skipped")
    print(f"the weights are {'finite' if finite else 'NOT finite'}")


if __name__ == "__main__":
    main()
