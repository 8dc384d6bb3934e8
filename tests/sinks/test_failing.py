"""Loggers that are slow, broken or full: training ends with the weights of a run without them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger

from gradwatch import MemorySink, NonFiniteGradientError, NonFiniteOptions
from gradwatch.callbacks import GradWatch
from tests.kit import Net, SkipsByHand, build, differences, fingerprint, fit, make_loader

FinishRun = Callable[[], Any]


class SlowLogger(DummyLogger):
    """Take its time, as one behind a bad connection does."""

    rows = 0

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        self.rows += 1
        time.sleep(0.02)


class FullBoard(TensorBoardLogger):
    """Write numbers, and fail at the first picture."""

    @property
    def experiment(self) -> Any:
        board = super().experiment
        board.add_image = fail
        return board


def fail(*args: Any, **kwargs: Any) -> None:
    raise OSError("no space left on device")


@pytest.fixture(scope="module")
def bare() -> dict[str, Any]:
    module = build(Net)
    trainer = fit(module, [SkipsByHand()], make_loader(spoil=[6]))
    return fingerprint(trainer, module)


def train(logger: Any, folder: Path, **options: Any) -> tuple[dict[str, Any], MemorySink]:
    sink, module = MemorySink(), build(Net)
    skips = NonFiniteOptions(policy="skip")
    watch = GradWatch(console=False, sinks=[sink], non_finite=skips, **options)
    settings: dict[str, Any] = {"default_root_dir": folder, "log_every_n_steps": 1}
    trainer = fit(module, [watch], make_loader(spoil=[6]), logger=logger, **settings)
    return fingerprint(trainer, module), sink


def test_a_slow_logger_changes_nothing(bare: dict[str, Any], tmp_path: Path) -> None:
    logger = SlowLogger()
    trained, sink = train(logger, tmp_path)
    assert differences(bare, trained) == []
    assert logger.rows == len(sink.records) == 14


def test_a_board_that_takes_no_picture_is_told_once(
    bare: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained, sink = train(FullBoard(tmp_path), tmp_path)
    assert differences(bare, trained) == []
    assert [text for text in caplog.messages if "switched off" in text] == [
        "gradwatch: FullBoard is switched off, training goes on: OSError: no space left on device"
    ]
    assert len(sink.records) == 14


def test_a_folder_that_cannot_be_written_is_told_once_and_the_finding_is_not_lost(
    bare: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Also the administrator, whom no permission stops, makes no folder in the place of a file.
    (tmp_path / "gradwatch_runs").write_text("")
    trained, sink = train(False, tmp_path)
    assert differences(bare, trained) == []
    told = [text for text in caplog.messages if "the run record" in text]
    assert len(told) == 1
    assert "training goes on" in told[0]
    assert [finding.step for finding in sink.findings if finding.rule == "non_finite"] == [1, 8]


def test_two_loggers_that_fail_are_told_once_each_and_the_third_goes_on(
    bare: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(DummyLogger):
        def log_metrics(self, *args: Any, **kwargs: Any) -> None:
            raise ConnectionError("no route to host")

    logger = CSVLogger(tmp_path, name="csv", version="")
    trained, _ = train([Broken(), FullBoard(tmp_path), logger], tmp_path)
    assert differences(bare, trained) == []
    told = [text for text in caplog.messages if "switched off" in text]
    assert len(told) == 2
    assert len((tmp_path / "csv" / "metrics.csv").read_text().splitlines()) == 15


def test_a_run_that_is_stopped_has_its_alert_its_picture_and_its_verdict(
    tmp_path: Path, finish_run: FinishRun
) -> None:
    logger = WandbLogger(project="test", mode="offline", save_dir=tmp_path)
    watch = GradWatch(console=False)
    with pytest.raises(NonFiniteGradientError):
        fit(build(Net), [watch], make_loader(spoil=[6]), logger=logger, log_every_n_steps=1)
    run = finish_run()
    assert [alert.title for alert in run.alerts()] == ["non_finite: <input>"]
    assert any("flow/heatmap/path" in row for row in run.rows())
    assert run.summary()["grad/first_non_finite_step"] == 1
    assert run.summary()["flow/worst_layer"] == "<input>"
