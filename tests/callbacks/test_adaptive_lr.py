"""The adaptive rate under a Trainer: the scheduler stays in charge, nothing compounds."""

from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from gradwatch import AdaptiveLearningRateOptions, MemorySink
from gradwatch.callbacks import AdaptiveLearningRate
from tests.kit import Calm, SavesAt, build, fit, make_half

NOW = AdaptiveLearningRateOptions(warmup_steps=0, averaging=0.0)


class Scheduled(Calm):
    """A chained scheduler: what it is handed it multiplies."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Rates(pl.Callback):
    """Note the rate that is applied, and the one that stands after the batch."""

    def __init__(self) -> None:
        self.applied: list[float] = []
        self.after: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.applied.append(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        self.after.append(trainer.optimizers[0].param_groups[0]["lr"])


def run(make: Any = Scheduled, **options: Any) -> tuple[Rates, MemorySink]:
    rates, sink = Rates(), MemorySink()
    callbacks = [AdaptiveLearningRate(NOW, sinks=[sink]), rates, SavesAt(4)]
    fit(build(make), callbacks, max_epochs=1, log_every_n_steps=1, **options)
    return rates, sink


def test_the_scheduled_rate_is_multiplied_for_one_update_and_never_compounds() -> None:
    rates, sink = run()
    scheduled = [0.1 * 0.5**step for step in range(8)]
    factors = [record.scalars["lr/factor"] for record in sink.records]
    assert rates.after == pytest.approx(scheduled[1:])
    expected = [rate * factor for rate, factor in zip(scheduled, factors, strict=False)]
    assert rates.applied == pytest.approx(expected)
    assert any(factor != 1.0 for factor in factors)


def test_checkpoints_hold_the_users_rate() -> None:
    run()
    saved = torch.load("middle.ckpt", weights_only=True)
    rate = saved["optimizer_states"][0]["param_groups"][0]["lr"]
    assert rate == pytest.approx(0.1 * 0.5**4)


def test_a_step_the_scaler_skips_is_not_scaled() -> None:
    adam = partial(Calm, partial(torch.optim.Adam, lr=0.1))
    rates, _ = run(adam, plugins=[make_half(2.0**40)])
    assert rates.applied == [0.1] * 7
    assert rates.after == [0.1] * 7


def test_a_rate_held_in_a_tensor_keeps_its_tensor() -> None:
    rate = torch.tensor(0.1)
    make = partial(Calm, lambda parameters: torch.optim.SGD(parameters, lr=rate))
    _, sink = run(make)
    assert rate.item() == pytest.approx(0.1)
    assert any(record.scalars["lr/factor"] != 1.0 for record in sink.records)
