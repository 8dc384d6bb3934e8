"""TensorBoard, CSV, MLflow and W&B, alone and at once, read back from what they wrote."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning.loggers as other_loggers
from lightning.pytorch import loggers
from mlflow.tracking import MlflowClient
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gradwatch.callbacks import GradWatch
from gradwatch.sinks.walls import image_walls
from tests.kit import Net, build, differences, fingerprint, fit

FinishRun = Callable[[], Any]
NORM = "grad_norm/conv"
STEPS = list(range(14))


def train(logger: Any) -> dict[str, Any]:
    module = build(Net)
    # A process that grows is a finding, and a finding has its picture: here it would be by chance.
    watch = GradWatch(console=False, record=False, memory=False)
    trainer = fit(module, [watch], logger=logger, log_every_n_steps=1)
    return fingerprint(trainer, module)


def read_tensorboard(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return events


def make_mlflow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    # The databases it asks for instead are not part of mlflow-skinny.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = loggers.MLFlowLogger(tracking_uri=f"file:{folder}")
    # A new run draws its name from Python's random numbers, and so does the model.
    assert logger.run_id
    return logger


def test_tensorboard_gets_scalars_and_pictures(tmp_path: Path) -> None:
    train(loggers.TensorBoardLogger(tmp_path, name="", version=""))
    events = read_tensorboard(tmp_path)
    assert [event.step for event in events.Scalars(NORM)] == STEPS
    images = events.Images("flow/heatmap")
    assert [image.step for image in images] == [13]
    image = images[0]
    with Image.open(io.BytesIO(image.encoded_image_string)) as drawn:
        assert drawn.size == (image.width, image.height)
        assert len(np.unique(np.asarray(drawn))) > 50


def test_mlflow_gets_scalars_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = make_mlflow(tmp_path / "ml", monkeypatch)
    train(logger)
    client = MlflowClient(f"file:{tmp_path / 'ml'}")
    points = client.get_metric_history(logger.run_id, NORM)
    assert [point.step for point in points] == STEPS
    drawn = [artifact.path for artifact in client.list_artifacts(logger.run_id, "flow")]
    assert "flow/heatmap_0000013.png" in drawn
    with Image.open(client.download_artifacts(logger.run_id, "flow/heatmap_0000013.png")) as image:
        assert image.format == "PNG"


def test_all_at_once_get_the_same_numbers_and_the_weights_are_those_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finish_run: FinishRun
) -> None:
    mlflow = make_mlflow(tmp_path / "ml", monkeypatch)
    together = [
        loggers.TensorBoardLogger(tmp_path / "tb", name="", version=""),
        loggers.CSVLogger(tmp_path, name="csv", version=""),
        mlflow,
        loggers.WandbLogger(project="test", mode="offline", save_dir=tmp_path),
    ]
    assert differences(train(logger=False), train(together)) == []
    rows = [row[NORM] for row in finish_run().rows() if NORM in row]
    with (tmp_path / "csv" / "metrics.csv").open() as file:
        in_csv = [float(row[NORM]) for row in csv.DictReader(file) if row[NORM]]
    points = MlflowClient(f"file:{tmp_path / 'ml'}").get_metric_history(mlflow.run_id, NORM)
    in_events = [event.value for event in read_tensorboard(tmp_path / "tb").Scalars(NORM)]
    assert len(rows) == 14
    assert rows == in_csv == [point.value for point in points]
    np.testing.assert_allclose(in_events, rows, rtol=1e-6)  # TensorBoard keeps float32


@pytest.mark.parametrize("namespace", [loggers, other_loggers])
def test_a_logger_of_either_lightning_shows_pictures(namespace: Any, tmp_path: Path) -> None:
    board = namespace.TensorBoardLogger(tmp_path, name="", version="")
    plain = namespace.CSVLogger(tmp_path)

    class OwnBoard(namespace.TensorBoardLogger):  # type: ignore[misc]
        pass

    own = OwnBoard(tmp_path, name="own")
    assert [logger for logger, _ in image_walls([plain, board, own])] == [board, own]
    ((_, hang),) = image_walls([board])
    hang({"flow/heatmap": Image.new("P", (5, 3))}, 7)
    board.experiment.flush()
    (image,) = read_tensorboard(tmp_path).Images("flow/heatmap")
    assert (image.step, image.width, image.height) == (7, 5, 3)
