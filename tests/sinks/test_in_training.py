"""Sinks under a real Trainer: whatever loggers it has, rows arrive and the run goes on."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import wandb
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gradwatch.callbacks import GradientFlowMonitor, GradWatch, NonFiniteMonitor
from gradwatch.non_finite.policy import NonFiniteOptions
from gradwatch.sinks import MemorySink

FinishRun = Callable[[], Any]


class Regression(pl.LightningModule):
    """Fit random numbers with whatever network it is handed."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def make_loader(samples: int = 16, *, bad: int | None = None) -> DataLoader[tuple[Tensor, ...]]:
    x, y = torch.randn(samples, 4), torch.randn(samples, 3)
    if bad is not None:
        x[bad, 0] = float("nan")
    return DataLoader(TensorDataset(x, y), batch_size=2)


def fit(net: nn.Module, *callbacks: pl.Callback, bad: int | None = None, **options: Any) -> Any:
    quiet = {
        "accelerator": "cpu",
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 1,
        "log_every_n_steps": 1,
    }
    trainer = pl.Trainer(callbacks=list(callbacks), **{**quiet, **options})
    model = Regression(net)
    trainer.fit(model, make_loader(bad=bad))
    return model


@pytest.mark.parametrize("dry", [False, True])
def test_without_a_logger_nothing_breaks_and_the_watch_goes_on(dry: bool, tmp_path: Path) -> None:
    memory = MemorySink()
    # Of a dry run the Trainer puts a dummy in the place of any logger.
    logger = CSVLogger(tmp_path / "csv") if dry else False
    fit(make_net(), GradWatch(sinks=[memory]), logger=logger, fast_dev_run=dry)
    assert not (tmp_path / "csv").exists()
    assert memory.records
    assert memory.closed == 1


def test_of_several_loggers_each_has_every_step(tmp_path: Path, finish_run: FinishRun) -> None:
    loggers = [
        CSVLogger(tmp_path, name="csv", version=""),
        WandbLogger(project="test", mode="offline", save_dir=tmp_path),
    ]
    fit(make_net(), GradWatch(), logger=loggers)
    rows = [row for row in finish_run().rows() if "grad_norm/net/0" in row]
    assert [row["trainer/global_step"] for row in rows] == list(range(8))
    with (tmp_path / "csv" / "metrics.csv").open() as file:
        norms = [row["grad_norm/net/0"] for row in csv.DictReader(file)]
    assert [float(norm) for norm in norms if norm] == [row["grad_norm/net/0"] for row in rows]


def test_under_accumulation_a_row_is_the_gradient_of_the_whole_step() -> None:
    memory = MemorySink()
    net = make_net()
    start = [parameter.detach().clone() for parameter in net.parameters()]
    monitor = GradientFlowMonitor(sinks=[memory])
    fit(net, monitor, logger=False, accumulate_grad_batches=4, max_steps=1)
    # Plain SGD: the update is the rate times the gradient that the optimizer was given.
    moved = [(a - b).norm() / 0.01 for a, b in zip(start, net.parameters(), strict=True)]
    flow = memory.records[0].flow
    assert flow is not None
    expected = [torch.stack(moved[:2]).norm().item(), torch.stack(moved[2:]).norm().item()]
    assert len(memory.records) == 1
    np.testing.assert_allclose(flow.grad_norm, expected, rtol=1e-4)


def test_accumulation_and_several_epochs_drop_no_row(tmp_path: Path, finish_run: FinishRun) -> None:
    logger = WandbLogger(project="test", mode="offline", save_dir=tmp_path)
    monitor = GradientFlowMonitor()
    fit(make_net(), monitor, logger=logger, accumulate_grad_batches=2, max_epochs=3)
    rows = finish_run().rows()
    assert sum("grad_norm/net/0" in row for row in rows) == 12
    assert sum("loss" in row for row in rows) >= 12


def test_a_step_full_of_bad_numbers_is_logged_without_them(
    tmp_path: Path, finish_run: FinishRun
) -> None:
    logger = WandbLogger(project="test", mode="offline", save_dir=tmp_path)
    net = make_net()
    callbacks = [GradientFlowMonitor(), NonFiniteMonitor(NonFiniteOptions(policy="skip"))]
    fit(net, *callbacks, logger=logger, bad=7)
    run = finish_run()
    ours = [row for row in run.rows() if any(key.startswith("grad") for key in row)]
    values = [v for row in ours for key, v in row.items() if key != "loss" and v != v]  # noqa: PLR0124
    assert values == []
    assert len(run.alerts()) == 1
    assert run.summary()["grad/first_non_finite_step"] == 3
    assert all(torch.isfinite(parameter).all() for parameter in net.parameters())


def test_a_row_of_fifteen_hundred_layers_is_written_and_small(
    tmp_path: Path, finish_run: FinishRun
) -> None:
    logger = WandbLogger(project="test", mode="offline", save_dir=tmp_path)
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(1500)), nn.Linear(4, 3))
    fit(net, GradientFlowMonitor(), logger=logger, max_steps=2)
    rows = [row for row in finish_run().rows() if "grad/norm" in row]
    assert len(rows) == 2
    assert max(len(row) for row in rows) <= 100


def test_for_a_disabled_run_nothing_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[object] = []
    monkeypatch.setattr("gradwatch.pictures.gallery", lambda *args, **kwargs: drawn.append(args))
    logger = WandbLogger(project="test", mode="disabled", save_dir=tmp_path)
    fit(make_net(), GradWatch(console=False), logger=logger)
    wandb.finish()
    assert drawn == []
