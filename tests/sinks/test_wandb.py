"""A real offline W&B run, read back from its file: rows, alerts, pictures, table, summary."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch.loggers
import numpy as np
import pytest
import pytorch_lightning.loggers
import wandb

from gradwatch.findings import Finding
from gradwatch.readings import StepRecord
from gradwatch.sinks import LoggerSink, Sink, WandbSink, wandb_run
from gradwatch.sinks.clock import PictureClock

MakeRecord = Callable[..., StepRecord]
MakeFinding = Callable[..., Finding]
FinishRun = Callable[[], Any]
LONG = "model.encoder.layers.{}.attention.output.dense.parent.child.norm"


def start_run() -> wandb.Run:
    return wandb.init(project="test", mode="offline")


@pytest.mark.parametrize("namespace", [lightning.pytorch.loggers, pytorch_lightning.loggers])
def test_a_wandb_logger_of_either_lightning_is_recognised(
    namespace: ModuleType, tmp_path: Path, finish_run: FinishRun
) -> None:
    logger = namespace.WandbLogger(project="test", mode="offline", save_dir=tmp_path)
    assert wandb_run([object(), logger]) is wandb.run
    finish_run()


def test_other_loggers_hold_no_run() -> None:
    assert wandb_run([object()]) is None


def test_elsewhere_than_on_rank_zero_the_experiment_is_not_touched() -> None:
    class WandbLogger:
        @property
        def experiment(self) -> None:
            pytest.fail("touched")

    assert wandb_run([WandbLogger()], rank=1) is None


def test_beside_a_lightning_logger_no_row_is_dropped(
    tmp_path: Path, make_record: MakeRecord, finish_run: FinishRun
) -> None:
    logger = lightning.pytorch.loggers.WandbLogger(
        project="test", mode="offline", save_dir=tmp_path
    )
    sinks: list[Sink] = [LoggerSink([logger]), WandbSink(logger.experiment)]
    for step in (0, 1, 2, 2, 1, 5):
        logger.log_metrics({"loss": 0.5}, step)
        for sink in sinks:
            sink.record(make_record(step))
    for sink in sinks:
        sink.close()
    rows = finish_run().rows()
    written = [row["trainer/global_step"] for row in rows if "grad/norm" in row]
    assert written == [0, 1, 2, 2, 1, 5]
    assert sum("loss" in row for row in rows) == 6


@pytest.mark.parametrize("own_first", [False, True])
@pytest.mark.parametrize("explicit", [False, True])
def test_beside_a_plain_loop_no_row_is_dropped(
    own_first: bool, explicit: bool, make_record: MakeRecord, finish_run: FinishRun
) -> None:
    run = start_run()
    sink = WandbSink(run, scalars=True)
    sink.start([])
    for step in range(20):
        if own_first:
            sink.record(make_record(step))
        run.log({"loss": float(step)}, step=step if explicit else None)
        if not own_first:
            sink.record(make_record(step))
    sink.close()
    rows = finish_run().rows()
    assert [row["loss"] for row in rows if "loss" in row] == list(range(20))
    ours = [row["trainer/global_step"] for row in rows if "grad/norm" in row]
    assert ours == list(range(20))
    assert sum("flow/heatmap/_type" in row for row in rows) == 2


def test_a_plain_loop_that_logs_nothing_itself_has_every_row(
    make_record: MakeRecord, finish_run: FinishRun
) -> None:
    sink = WandbSink(start_run(), scalars=True)
    sink.start([])
    for step in range(0, 30, 3):
        sink.record(make_record(step, [1.0 + step, 0.5]))
    sink.close()
    rows = [row for row in finish_run().rows() if "grad/norm" in row]
    assert [row["trainer/global_step"] for row in rows] == list(range(0, 30, 3))
    assert [row["grad_norm/net/0"] for row in rows] == [1.0 + step for step in range(0, 30, 3)]


def test_the_official_reader_sees_the_same_rows(
    make_record: MakeRecord, finish_run: FinishRun
) -> None:
    sink = WandbSink(start_run(), scalars=True)
    sink.record(make_record(4))
    sink.close()
    run = finish_run()
    wandb_command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run.folder)]
    done = subprocess.run(wandb_command, capture_output=True, text=True, check=True)
    assert sum('"history"' in line for line in done.stdout.splitlines()) == len(run.rows())
    assert "grad_norm/net/0" in done.stdout


def test_a_finding_is_an_alert_with_evidence_cause_and_remedy(
    make_finding: MakeFinding, finish_run: FinishRun
) -> None:
    WandbSink(start_run()).finding(make_finding())
    (alert,) = finish_run().alerts()
    assert alert.title == "vanishing: net.0"
    assert alert.level == "WARN"
    assert alert.text.splitlines() == [
        "vanishing in net.0 at step 3: gradient norm is a millionth of the next layer's",
        "  evidence  grad_norm 1e-08",
        "  cause     a saturated sigmoid follows",
        "  remedy    use another activation",
    ]


def test_titles_of_deep_layers_are_short_and_stay_apart(
    make_finding: MakeFinding, finish_run: FinishRun
) -> None:
    sink = WandbSink(start_run())
    for i in (10, 11):
        sink.finding(make_finding(rule="non_finite", layer=LONG.format(i), severity="error"))
    titles = [alert.title for alert in finish_run().alerts()]
    assert len(set(titles)) == 2
    assert all(len(title) < 64 and title.endswith(".parent.child.norm") for title in titles)


def test_an_alert_is_not_repeated_before_its_cooldown(
    make_finding: MakeFinding, finish_run: FinishRun
) -> None:
    sink = WandbSink(start_run(), cooldown_steps=100)
    for step in (0, 50, 99, 100, 150):
        sink.finding(make_finding(step=step))
    sink.finding(make_finding(step=60, layer="net.1"))
    steps = [alert.text.split(" at step ")[1].split(":")[0] for alert in finish_run().alerts()]
    assert steps == ["0", "100", "60"]


def test_a_resumed_run_goes_on_with_the_cooldown(
    make_finding: MakeFinding, finish_run: FinishRun
) -> None:
    run = start_run()
    first, second = WandbSink(run, cooldown_steps=100), WandbSink(run, cooldown_steps=100)
    first.finding(make_finding(step=10))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.finding(make_finding(step=20))
    assert len(finish_run().alerts()) == 1


def test_a_flood_of_findings_is_a_bounded_number_of_alerts(
    make_finding: MakeFinding, finish_run: FinishRun
) -> None:
    sink = WandbSink(start_run())
    for i in range(500):
        sink.finding(make_finding(layer=f"net.{i}"))
    sink.close()
    run = finish_run()
    assert len(run.alerts()) == 32
    assert run.summary()["flow/finding_count"] == 500


def test_what_is_only_worth_knowing_sends_no_alert(
    make_finding: MakeFinding, finish_run: FinishRun
) -> None:
    WandbSink(start_run()).finding(make_finding(severity="info"))
    assert finish_run().alerts() == []


def test_the_end_holds_pictures_table_and_summary(
    make_record: MakeRecord, make_finding: MakeFinding, finish_run: FinishRun
) -> None:
    sink = WandbSink(start_run())
    sink.record(make_record(0))
    sink.record(make_record(8, [np.inf, 0.5], scalars={"grad/non_finite": 2.0}))
    sink.finding(make_finding())
    sink.finding(make_finding(rule="non_finite", layer="net.1", severity="error", step=8))
    sink.close()
    sink.close()
    run = finish_run()
    last = run.rows()[-2] | run.rows()[-1]
    for key in ("flow/heatmap", "flow/profile"):
        assert (run.folder / "files" / last[f"{key}/path"]).is_file()
    table = json.loads((run.folder / "files" / last["flow/findings/path"]).read_text())
    assert [row[2] for row in table["data"]] == ["net.0", "net.1"]
    summary = run.summary()
    assert summary["flow/worst_layer"] == "net.1"
    assert summary["flow/verdict"].startswith("non_finite in net.1 at step 8")
    assert summary["grad/first_non_finite_step"] == 8


def test_a_healthy_run_is_called_so(make_record: MakeRecord, finish_run: FinishRun) -> None:
    sink = WandbSink(start_run(), pictures=False)
    sink.record(make_record())
    sink.close()
    summary = finish_run().summary()
    assert summary["flow/verdict"] == "healthy"
    assert "flow/worst_layer" not in summary


def test_no_number_written_is_non_finite(make_record: MakeRecord, finish_run: FinishRun) -> None:
    sink = WandbSink(start_run(), scalars=True)
    sink.start([])
    bad = np.array([np.inf, np.nan])
    for step in range(3):
        sink.record(make_record(step, bad, update_ratio=bad, act_grad=bad))
    sink.close()
    rows = finish_run().rows()
    numbers = [value for row in rows for value in row.values() if isinstance(value, float)]
    assert "grad_norm/net/0" not in rows[0]
    assert np.isfinite(numbers).all()


def test_pictures_are_drawn_at_doubling_distances() -> None:
    clock = PictureClock()
    assert [record for record in range(1, 200) if clock.tick(record)] == [16, 32, 64, 128]


def test_a_finding_has_its_picture_at_once_but_a_hundred_have_eight() -> None:
    clock = PictureClock()
    drawn = 0
    for record in range(15):
        clock.ask()
        drawn += clock.tick(record)
    assert drawn == 8


def test_slow_pictures_wait_until_the_steps_have_paid_for_them() -> None:
    clock, drawn = PictureClock(), list[int]()
    for step in range(0, 20_000, 50):
        if clock.tick(step):
            clock.spend(4.0)
            drawn.append(step)
    # The second would have been due at step 1,550, but eight seconds are paid for at 3,000.
    assert drawn == [750, 3000, 7000, 12750]


def test_a_run_that_fails_is_told_once(make_record: MakeRecord, finish_run: FinishRun) -> None:
    run = start_run()
    told: list[str] = []
    sink = WandbSink(run, scalars=True, tell=told.append)
    finish_run()
    for step in range(3):
        sink.record(make_record(step))
    sink.close()
    assert len(told) == 1
    assert "W&B is switched off, training goes on" in told[0]


def test_a_disabled_run_swallows_everything(
    make_record: MakeRecord, make_finding: MakeFinding
) -> None:
    told: list[str] = []
    sink = WandbSink(wandb.init(mode="disabled"), scalars=True, tell=told.append)
    sink.start([])
    sink.record(make_record())
    sink.finding(make_finding())
    sink.close()
    wandb.finish()
    assert told == []
