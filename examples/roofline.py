"""Where does a step go? A small network on digits, narrow and wide, profiled as it trains.

Narrow, every layer is bound by its launches: larger batches or fused layers help, a faster
machine does not. Wide, the convolutions are bound by arithmetic, and what lies between them by
memory bandwidth: there fusing pays.

Run: python examples/roofline.py
"""

import torch
from digits import images, quiet
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from gradwatch.callbacks import RooflineMonitor
from gradwatch.roofline import Profile, RooflineOptions


class Network(LightningModule):
    """Two convolutions with what usually stands between them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.act = nn.ReLU()
        self.drop = nn.Dropout(0.1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.head = nn.Linear(channels * 64, 10)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x = self.drop(self.act(self.norm(self.conv1(batch[0].unsqueeze(1)))))
        return nn.functional.cross_entropy(self.head(self.conv2(x).flatten(1)), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def study(channels: int, batch_size: int, options: RooflineOptions) -> Profile | None:
    """Train until the profile is done."""
    torch.manual_seed(0)
    monitor = RooflineMonitor(options)
    steps = options.warmup_steps + options.timed_steps + options.traced_steps + 2
    trainer = Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=[monitor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Network(channels), images(batch_size))
    return monitor.profile


def show(told: Profile) -> None:
    phases = ", ".join(f"{name} {own * 1e3:.1f}" for name, own in told.phases.items())
    print(f"a step of {told.step_seconds * 1e3:.1f} ms: {phases} ms")
    for own in told.layers:
        print(f"  {own.layer:<8}{own.kind:<17}{own.reason}")


def main(sizes: tuple[tuple[int, int], ...] = ((2, 16), (64, 512))) -> None:
    quiet()
    options = RooflineOptions(warmup_steps=3, timed_steps=3, traced_steps=3)
    for channels, batch_size in sizes:
        told = study(channels, batch_size, options)
        if told is not None:
            print(f"\n== {channels} channels, {batch_size} images")
            show(told)


if __name__ == "__main__":
    main()
