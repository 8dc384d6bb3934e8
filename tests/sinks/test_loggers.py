"""Any logger or none: one row per record, nothing dropped, nothing that stops a run."""

import csv
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import lightning.pytorch.loggers
import numpy as np
import pytest
import pytorch_lightning.loggers
from lightning.pytorch.loggers.logger import DummyLogger

from gradwatch.readings import StepRecord
from gradwatch.sinks import LoggerSink

MakeRecord = Callable[..., StepRecord]


class ListLogger:
    """Keep the rows; spoil what it was handed, as some loggers do."""

    def __init__(self) -> None:
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))
        assert isinstance(metrics, dict)
        metrics["epoch"] = 0


class BrokenLogger:
    """Fail as a server that is away does."""

    calls = 0

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.calls += 1
        message = "no route to host"
        raise ConnectionError(message)


def test_a_record_is_one_row_at_the_loggers_step(make_record: MakeRecord) -> None:
    logger = ListLogger()
    sink = LoggerSink([logger])
    sink.record(make_record(7))
    row = {
        "grad/norm": 1.25,
        "grad_norm/net/0": 1.0,
        "grad_norm/net/1": 0.5,
        "weight_norm/net/0": 2.0,
        "weight_norm/net/1": 2.0,
    }
    assert logger.rows == [(7, row)]


def test_several_loggers_get_the_same_row_each(make_record: MakeRecord) -> None:
    loggers = [ListLogger(), ListLogger()]
    LoggerSink(loggers).record(make_record())
    assert loggers[0].rows == loggers[1].rows
    assert "epoch" not in loggers[1].rows[0][1]


def test_one_logger_needs_no_list(make_record: MakeRecord) -> None:
    logger = ListLogger()
    LoggerSink(logger).record(make_record())
    assert len(logger.rows) == 1


@pytest.mark.parametrize("nothing", [None, False])
def test_no_logger_is_fine(nothing: Literal[False] | None, make_record: MakeRecord) -> None:
    told: list[str] = []
    sink = LoggerSink(nothing, tell=told.append)
    sink.start([])
    sink.record(make_record())
    sink.close()
    assert told == []


@pytest.mark.parametrize("listed", [False, True])
def test_a_dummy_logger_swallows_everything(listed: bool, make_record: MakeRecord) -> None:
    logger: Any = DummyLogger()
    told: list[str] = []
    LoggerSink([logger] if listed else logger, tell=told.append).record(make_record())
    assert told == []


def test_a_logger_that_fails_is_told_once_and_left_alone(make_record: MakeRecord) -> None:
    broken, healthy, told = BrokenLogger(), ListLogger(), list[str]()
    sink = LoggerSink([broken, healthy], tell=told.append)
    for step in range(3):
        sink.record(make_record(step))
    line = "BrokenLogger is switched off, training goes on: ConnectionError: no route to host"
    assert told == [f"gradwatch: {line}"]
    assert broken.calls == 1
    assert [step for step, _ in healthy.rows] == [0, 1, 2]


def test_a_failure_is_told_through_the_projects_logger_by_default(
    make_record: MakeRecord, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="gradwatch"):
        LoggerSink([BrokenLogger()]).record(make_record())
    assert "BrokenLogger is switched off" in caplog.text


@pytest.mark.parametrize("namespace", [lightning.pytorch.loggers, pytorch_lightning.loggers])
def test_a_logger_of_either_lightning_writes_every_row(
    namespace: ModuleType, tmp_path: Path, make_record: MakeRecord
) -> None:
    logger = namespace.CSVLogger(tmp_path, name="", version="")
    sink = LoggerSink([logger])
    for step in (0, 4, 4, 2):
        sink.record(make_record(step))
    logger.save()
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["grad_norm/net/0"] == "1.0"
    assert {row["step"] for row in rows} == {"0", "2", "4"}


def test_a_record_without_a_profile_writes_its_totals() -> None:
    logger = ListLogger()
    LoggerSink(logger).record(StepRecord(step=1, log_step=1, scalars={"mem/peak_mib": 3.0}))
    assert logger.rows == [(1, {"mem/peak_mib": 3.0})]


def test_a_step_whose_gradients_are_all_bad_writes_what_is_finite(make_record: MakeRecord) -> None:
    logger = ListLogger()
    bad = make_record(0, [np.inf, np.inf], scalars={"grad/non_finite": 4.0})
    LoggerSink(logger).record(bad)
    row = logger.rows[0][1]
    assert row["grad/non_finite"] == 4.0
    assert np.isfinite(list(row.values())).all()


def test_a_row_of_a_big_model_is_bounded_and_keeps_its_series(make_record: MakeRecord) -> None:
    logger = ListLogger()
    sink = LoggerSink(logger)
    norms = np.ones(1500)
    norms[42] = 1e-7
    for step in range(5):
        sink.record(make_record(step, norms))
    assert {len(row) for _, row in logger.rows} == {1 + 16 * 2 + 16}
    assert all("grad_norm/net/42" in row for _, row in logger.rows)
