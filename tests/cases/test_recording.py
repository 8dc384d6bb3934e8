"""What reaches the loggers: every step once, finite numbers only, bounded in size."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import wandb
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gradwatch import MemorySink, NonFiniteOptions
from gradwatch.callbacks import GradWatch
from gradwatch.errors import NonFiniteGradientError
from tests.sinks.conftest import OfflineRun

Run = Callable[..., Any]
Note = Callable[[str, str, str], None]
ROW_BYTES = 64_000


class Logging(pl.LightningModule):
    """Log a loss of one's own each step; now and then there is nothing to train on."""

    def __init__(self, net: nn.Module, *, skip_odd: bool = False) -> None:
        super().__init__()
        self.net, self.skip_odd = net, skip_odd

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        if self.skip_odd and batch_idx % 2:
            return None
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def make_loader(count: int, bad: float | None = None) -> DataLoader[Any]:
    batches: Any = [(torch.randn(5, 4), torch.randn(5, 3)) for _ in range(count)]
    if bad is not None:
        batches[1][0][3, 0] = bad
    return DataLoader(batches, batch_size=None)


@pytest.fixture
def wandb_logger(tmp_path: Path) -> Iterator[WandbLogger]:
    yield WandbLogger(project="cases", mode="offline", save_dir=tmp_path)
    wandb.finish()


def read_back() -> OfflineRun:
    assert wandb.run is not None
    folder = Path(wandb.run.dir).parent
    wandb.finish()
    return OfflineRun(folder)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_of_bad_numbers_is_logged_as_counts_and_breaks_no_logger(
    trainer: Run, note: Note, wandb_logger: WandbLogger, tmp_path: Path, bad: float
) -> None:
    loggers = [wandb_logger, CSVLogger(tmp_path, name="csv", version="")]
    guard = GradWatch(non_finite=NonFiniteOptions(policy="skip"), console=False)
    trainer(guard, logger=loggers).fit(Logging(make_net()), make_loader(6, bad))
    rows = [row for row in read_back().rows() if "grad/non_finite" in row]
    assert [row["grad/non_finite"] for row in rows] == [0, 1, 1, 1, 1, 1]
    ours = [
        value
        for row in rows
        for key, value in row.items()
        if isinstance(value, float) and key != "loss"
    ]
    assert all(math.isfinite(value) for value in ours)
    assert (tmp_path / "csv" / "metrics.csv").exists()
    note("c01", "never raises; counts instead of bad numbers", "6 rows, all finite, 1 counted")


@pytest.mark.parametrize(("accumulate", "epochs"), [(1, 1), (2, 3)])
def test_no_row_is_dropped_beside_the_users_own(
    trainer: Run, note: Note, wandb_logger: WandbLogger, accumulate: int, epochs: int
) -> None:
    module, loader = Logging(make_net()), make_loader(8)
    options = {"logger": wandb_logger, "accumulate_grad_batches": accumulate}
    first = trainer(GradWatch(console=False), max_epochs=epochs, **options)
    first.fit(module, loader)
    first.save_checkpoint("end.ckpt")
    again = trainer(GradWatch(console=False), max_epochs=epochs + 1, **options)
    again.fit(module, loader, ckpt_path="end.ckpt", weights_only=False)
    rows = read_back().rows()
    steps = 8 // accumulate * (epochs + 1)
    ours = [row for row in rows if "grad_norm/net/0" in row]
    assert [row["trainer/global_step"] for row in ours] == list(range(steps))
    assert sum("loss" in row for row in rows) == steps
    numbers = [row["_step"] for row in rows]
    assert numbers == sorted(set(numbers))
    note("c03", "zero dropped rows, also after a resume", f"{len(ours)} rows for {steps} steps")


@pytest.mark.parametrize("depth", [300, 1500])
def test_a_row_stays_small_however_many_layers_there_are(
    trainer: Run, note: Note, wandb_logger: WandbLogger, depth: int
) -> None:
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)), nn.Linear(4, 3))
    sink = MemorySink()
    guard = GradWatch(console=False, sinks=[sink])
    trainer(guard, logger=wandb_logger).fit(Logging(net), make_loader(2))
    rows = [row for row in read_back().rows() if "grad/norm" in row]
    assert len(rows) == 2
    largest = max(len(json.dumps(row)) for row in rows)
    assert largest < ROW_BYTES
    flow = sink.records[0].flow
    assert flow is not None
    assert len(flow.layers) == depth + 1
    note("c07", "bounded series, small rows", f"{depth} layers: {largest / 1000:.1f} kB a row")


@pytest.mark.parametrize("kind", ["none", "dry", "csv", "list"])
def test_a_fault_is_named_whatever_the_loggers_are(
    trainer: Run, note: Note, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    csv = CSVLogger(tmp_path, name="csv", version="")
    logger: Any = {"csv": csv, "list": [csv, CSVLogger(tmp_path, name="two")]}
    chosen = logger.get(kind, False)
    limits = NonFiniteOptions(policy="skip" if kind == "dry" else "raise", checkpoint=False)
    watching = trainer(
        GradWatch(non_finite=limits), logger=chosen, fast_dev_run=2 if kind == "dry" else False
    )
    module = Logging(make_net())
    if kind == "dry":
        watching.fit(module, make_loader(3, float("nan")))
    else:
        with pytest.raises(NonFiniteGradientError, match="<input>"):
            watching.fit(module, make_loader(3, float("nan")))
    assert "<input>" in capsys.readouterr().out
    note("d10", "no crash, detection on the console", f"{kind}: <input> named on the console")


# Lightning warns of a step that returns None: once in a process, whichever test comes first.
@pytest.mark.filterwarnings("ignore:.training_step. returned .None.")
def test_a_batch_that_is_left_out_makes_no_record_and_leaves_no_stale_norm(
    trainer: Run, note: Note
) -> None:
    def watched(loader: Any, *, skip_odd: bool) -> tuple[list[float], tuple[Any, ...]]:
        torch.manual_seed(0)
        sink = MemorySink()
        guard = GradWatch(console=False, record=False, sinks=[sink])
        trainer(guard).fit(Logging(make_net(), skip_odd=skip_odd), loader)
        return [record.scalars["grad/norm"] for record in sink.records], guard.findings

    batches: Any = [(torch.randn(5, 4), torch.randn(5, 3)) for _ in range(8)]
    norms, findings = watched(DataLoader(batches, batch_size=None), skip_odd=True)
    expected, _ = watched(DataLoader(batches[::2], batch_size=None), skip_odd=False)
    assert norms == expected
    assert findings == ()
    note("d11", "no record of a batch left out", "4 records of 8 batches, norms of the 4 alone")
