"""A module may be called anything: no sink breaks on it, no terminal and no page obeys it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wandb
from lightning.pytorch.loggers import TensorBoardLogger

from gradwatch.findings import Finding
from gradwatch.history import History
from gradwatch.pictures import gallery
from gradwatch.printable import printable
from gradwatch.readings import Coverage, StepRecord
from gradwatch.report import write_report
from gradwatch.sinks import ConsoleSink, LoggerSink, RunRecordSink, WandbSink, read
from gradwatch.sinks.protocol import Sink
from gradwatch.tables import Table

MakeRecord = Callable[..., StepRecord]
MakeFinding = Callable[..., Finding]

LAYERS = (
    "<script>alert(1)</script>",
    "</title><img src=x onerror=alert(2)>",
    "javascript:alert(3)",
    "net.数学层 δ🙂",
    "x" * 300,
    f"{'a' * 70}/{'b' * 200}",
    "back\\slash",
    "\"quoted\" & 'it'",
    "[red]markup[/red]:bug:",
    "%s {0} ${style} {{7*7}}",
    "new\nline and\ttab",
    "\x1b[2J\x1b]0;title\x07",
    "\u202eright to left",
    "nul\x00",
    "half \ud800",
    " ",
)


@pytest.fixture
def tell_all(make_record: MakeRecord, make_finding: MakeFinding) -> Callable[[Sink], None]:
    norms = np.geomspace(1e-9, 1.0, len(LAYERS))

    def tell(sink: Any) -> None:
        sink.start([Coverage(layer=layer, state="blind", reason=layer) for layer in LAYERS])
        for step in range(3):
            sink.record(make_record(step, norms, layers=LAYERS))
        for layer in LAYERS:
            evidence = {"line": layer, "chain": f"<loss> → {layer}", layer: layer}
            sink.finding(make_finding(layer=layer, summary=layer, cause=layer, evidence=evidence))
        if hasattr(sink, "table"):
            rows = tuple((layer, 1.0) for layer in LAYERS)
            columns = ("layer", "time (ms)")
            sink.table(Table(name="own", title=LAYERS[0], step=1, columns=columns, rows=rows))
        sink.close()

    return tell


def test_wandb_takes_every_name(
    tell_all: Callable[[Sink], None], finish_run: Callable[[], Any]
) -> None:
    told: list[str] = []
    run = wandb.init(project="test", name=LAYERS[0] * 5, mode="offline")
    tell_all(WandbSink(run, scalars=True, tell=told.append))
    done = finish_run()
    assert told == []
    keys = {key for row in done.rows() for key in row if key.startswith("grad_norm/")}
    assert keys == {f"grad_norm/{printable(layer).replace('.', '/')}" for layer in LAYERS}
    assert done.summary()["flow/worst_layer"] == LAYERS[0]
    assert any("flow/heatmap/path" in row for row in done.rows())


def test_tensorboard_takes_every_name(tell_all: Callable[[Sink], None], tmp_path: Path) -> None:
    told: list[str] = []
    logger = TensorBoardLogger(tmp_path, name="odd")
    tell_all(LoggerSink(logger, tell=told.append))
    logger.finalize("success")
    assert told == []


def test_a_terminal_is_told_names_and_commands_it_in_nothing(
    tell_all: Callable[[Sink], None],
) -> None:
    told: list[str] = []
    tell_all(ConsoleSink(told.append, width=100))
    lines = [line for block in told for line in block.split("\n")]
    assert [line for line in lines if not line.isprintable()] == []
    assert max(map(len, lines)) <= 100
    assert any("\\x1b[2J" in line for line in lines)
    assert any("[red]markup[/red]:bug:" in line for line in lines)


@pytest.fixture
def record(tell_all: Callable[[Sink], None], tmp_path: Path) -> Path:
    path = tmp_path / "gradwatch_runs" / "record.jsonl"
    tell_all(RunRecordSink(path, config={LAYERS[0]: LAYERS[1]}))
    return path


def test_the_record_gives_every_name_back(record: Path) -> None:
    run = read(record)
    assert [finding.layer for finding in run.findings] == list(LAYERS)
    assert run.records[0].flow is not None
    assert run.records[0].flow.layers == LAYERS


def test_the_page_holds_every_name_as_text(record: Path) -> None:
    page = write_report(record).read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>", page) == [
        '<script type="application/json" id="data">',
        "<script>",
    ]
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(2)&gt;" in page
    body = page.partition("<main")[2].partition("</main>")[0]
    assert [sign for sign in body if not sign.isprintable() and sign != "\n"] == []


def test_pictures_are_drawn_whatever_the_names(make_record: MakeRecord) -> None:
    history = History()
    norms = np.geomspace(1e-9, 1.0, len(LAYERS))
    for step in range(3):
        history.add(make_record(step, norms, layers=LAYERS, update_ratio=norms))
    assert {picture.name for picture in gallery(history)} >= {"flow/heatmap", "flow/profile"}
