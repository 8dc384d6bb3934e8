"""Let the learning rate follow the gradient: a rate that is too high, with and without.

Run: python examples/adaptive_lr.py
"""

import torch
from digits import images, quiet
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from gradwatch import AdaptiveLearningRateOptions, MemorySink
from gradwatch.callbacks import GradWatch


class Perceptron(LightningModule):
    """Two hidden layers, and SGD at three times the rate that suits it."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        self.net = nn.Sequential(nn.Flatten(), *layers)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)


def main(max_steps: int = 300) -> None:
    quiet()
    for adaptive in (False, AdaptiveLearningRateOptions(rule="inverse")):
        torch.manual_seed(0)
        model, told = Perceptron(), MemorySink()
        watch = GradWatch(adaptive_lr=adaptive, console=False, record=False, sinks=[told])
        Trainer(
            callbacks=[watch], max_steps=max_steps, accelerator="cpu", logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        ).fit(model, images())  # fmt: skip
        pixels, labels = images().dataset[:]
        right = (model.net(pixels).argmax(dim=1) == labels).float().mean().item()
        last = told.records[-1].scalars
        factor = next((value for key, value in last.items() if key.startswith("lr/factor")), 1.0)
        name = "fixed" if isinstance(adaptive, bool) else adaptive.rule
        print(f"{name:<8} train accuracy {right:.1%}, factor on the rate at the end {factor:.3g}")


if __name__ == "__main__":
    main()
