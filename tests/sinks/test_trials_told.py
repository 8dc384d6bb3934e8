"""A real trial in a fit, as it reaches W&B, the console, the run record and the report."""

import contextlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from lightning.pytorch.loggers import WandbLogger
from PIL import Image
from torch import Tensor, nn

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from gradwatch.fused import bench
from gradwatch.report import write_report
from gradwatch.sinks.record_reader import read
from tests.fused.lab import CLOCK, QUICK, Offers, SlowNorm, named, quick
from tests.kit import Calm, build, fit
from tests.report.parsed import Page
from tests.sinks.conftest import OfflineRun

MIB = 1 << 20


class Slow(Calm):
    """Calm, with one layer norm that takes its time and two that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = SlowNorm(16)
        self.hidden: Any = nn.Sequential(self.hidden, nn.LayerNorm(16), nn.Tanh())


def wrong(self: nn.LayerNorm, x: Tensor) -> Tensor:
    return quick(self, x) * 1.01


def late(self: nn.Tanh, x: Tensor) -> Tensor:
    CLOCK.spend(0.02)
    return torch.tanh(x)


PROVIDERS = (
    Offers(SlowNorm, quick, "lab"),
    Offers(nn.LayerNorm, named(wrong), "wrong"),
    Offers(nn.Tanh, named(late), "late"),
)


@dataclass
class Told:
    """All that a run left."""

    given: Sequence[Mapping[str, Any]]
    printed: str
    record: Path
    page: Page
    run: OfflineRun


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder, sink, printed = tmp_path_factory.mktemp("told"), MemorySink(), io.StringIO()
    peaks = count(100 * MIB, MIB // 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "time", CLOCK)
        # On a CPU nobody counts memory; each look here finds half a MiB more than the last.
        patch.setattr(bench.Bench, "peak_bytes", lambda _self, dress: (dress(), next(peaks))[1])
        patch.setenv("COLUMNS", "100")
        patch.chdir(folder)
        options = FusedBackwardOptions(**{**QUICK, "after_steps": 2, "providers": PROVIDERS})
        logger = WandbLogger(project="test", mode="offline", save_dir=folder)
        with contextlib.redirect_stdout(printed):
            fit(build(Slow), [FusedBackward(options, sinks=[sink])], logger=logger)
        offline = Path(logger.experiment.dir).parent
        wandb.finish()
    (record,) = folder.rglob("record*.jsonl")
    page = Page(write_report(folder).read_text())
    (table,) = [table for table in sink.tables if table.name == "trials"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    yield Told(rows, printed.getvalue(), record, page, OfflineRun(offline))
    wandb.finish()


def test_the_trial_had_every_outcome_and_its_figures(told: Told) -> None:
    outcomes = [(row["layer"], row["provider"], row["verdict"]) for row in told.given]
    assert outcomes == [
        ("hidden.1", "wrong", "rejected"),
        ("hidden.2", "late", "rolled back"),
        ("norm", "lab", "kept"),
        ("all kept changes", "lab", "kept"),
    ]
    kept = told.given[2]
    assert kept["low"] <= kept["after / before"] <= kept["high"] < 1
    assert kept["before (ms)"] > kept["after (ms)"]
    assert kept["peak memory (MiB)"] == 0.5
    assert kept["error"] <= 2 * kept["stock error"] + 1e-7


def test_the_run_record_holds_the_table_cell_by_cell(told: Told) -> None:
    table = read(told.record).tables["trials"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [list(row) for row in rows] == [list(row) for row in told.given]
    for row, given in zip(rows, told.given, strict=True):
        assert row == pytest.approx(given)


def test_wandb_holds_the_table_with_its_reasons_and_memory(told: Told) -> None:
    (row,) = [row for row in told.run.rows() if any("fused/trials" in key for key in row)]
    (path,) = [value for key, value in row.items() if key == "fused/trials/path"]
    held = json.loads((told.run.folder / "files" / path).read_text())
    rows = [dict(zip(held["columns"], cells, strict=True)) for cells in held["data"]]
    assert [own["verdict"] for own in rows] == [own["verdict"] for own in told.given]
    assert [own["reason"] for own in rows] == [own["reason"] for own in told.given]
    assert [own["peak memory (MiB)"] for own in rows] == [None, 0.5, 0.5, 0.5]


def test_wandb_holds_a_picture_of_the_intervals(told: Told) -> None:
    paths = [row["fused/chart/path"] for row in told.run.rows() if "fused/chart/path" in row]
    with Image.open(told.run.folder / "files" / paths[-1]) as picture:
        assert picture.width == 960
        assert picture.height > 3 * 34


def test_the_console_shows_the_verdicts_in_a_hundred_columns(told: Told) -> None:
    lines = told.printed.splitlines()
    (start,) = [at for at, line in enumerate(lines) if "Fused layers tried at step 2" in line]
    shown = "\n".join(lines[start : start + 10])
    for row in told.given:
        (line,) = [each for each in shown.splitlines() if each.startswith(f"{row['layer']} ")]
        assert str(row["verdict"]) in line
    assert "a fused forward runs in 1 module" in told.printed
    assert "reason" in shown


def test_the_report_shows_rows_verdicts_reasons_and_the_picture(told: Told) -> None:
    text = told.page.text
    assert "Fused layers tried at step 2" in text
    for row in told.given:
        for column in ("layer", "change", "provider", "verdict", "reason"):
            assert " ".join(str(row[column]).split()) in text
    assert "peak memory (MiB)" in text
    pictures = [own for tag, own in told.page.tags if tag == "img"]
    drawn = [
        own for own in pictures if (own.get("alt") or "").startswith("Changes that were tried")
    ]
    assert [own["class"] for own in drawn] == ["light", "dark"]
