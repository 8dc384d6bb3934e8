"""What was bad before the blamed operation does not lead its chain astray."""

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from gradwatch import NonFiniteOptions
from tests.kit import build, fit, watcher


class Scaled(pl.LightningModule):
    """Multiply the outputs by an infinite number, as a broken temperature does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(36, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        out: Tensor = self.net(batch[0].flatten(1))
        if batch_idx == 1:
            out = out * float("inf")
        return out.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_an_infinite_factor_in_the_loss_is_answered_by_a_replay() -> None:
    watch, sink = watcher(non_finite=NonFiniteOptions(policy="skip", bundle=False))
    fit(build(Scaled), [watch], max_epochs=1)
    (finding,) = sink.findings
    assert (finding.rule, finding.layer, finding.step) == ("non_finite", "<loss>", 1)
    assert finding.evidence["replay"] == "reproducible"
