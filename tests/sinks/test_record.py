"""The run record survives crashes, bad numbers and bad disks."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradwatch.errors import ConfigurationError
from gradwatch.findings import Finding
from gradwatch.readings import Coverage, FlowReading, StepRecord
from gradwatch.sinks import RunRecordSink, read
from gradwatch.tables import Table

MakeFlow = Callable[..., FlowReading]
MakeRecord = Callable[..., StepRecord]
MakeFinding = Callable[..., Finding]

CRASHING = """
import os, signal, sys
from gradwatch.readings import StepRecord
from gradwatch.sinks import RunRecordSink

sink = RunRecordSink(sys.argv[1])
sink.start([])
for step in range(5):
    sink.record(StepRecord(step=step, log_step=step, scalars={"grad/norm": 1.0}))
os.kill(os.getpid(), signal.SIGKILL)
"""


def refuse_constant(name: str) -> Any:
    pytest.fail(f"{name} is no JSON")


def test_a_run_is_read_back_as_it_was_written(
    tmp_path: Path, make_record: MakeRecord, make_finding: MakeFinding
) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    sink = RunRecordSink(path, config={"on_non_finite": "raise", "folder": Path("x")})
    sink.start([Coverage(layer="net.0", state="hooked")])
    record = make_record(3, [0.25, 4.0], update_ratio=np.array([0.5, 0.125]))
    sink.record(record)
    sink.finding(make_finding())
    sink.close()
    run = read(path)
    assert run.headers[0]["config"] == {"on_non_finite": "raise", "folder": "x"}
    assert run.headers[0]["coverage"] == [{"layer": "net.0", "state": "hooked", "reason": ""}]
    assert "torch" in run.headers[0]["versions"]
    assert run.findings == [make_finding()]
    assert run.footers[0]["records"] == run.footers[0]["findings"] == 1
    (back,) = run.records
    assert back.flow is not None
    assert (back.step, back.scalars, back.flow.layers) == (3, record.scalars, ("net.0", "net.1"))
    np.testing.assert_array_equal(back.flow.grad_norm, [0.25, 4.0])
    np.testing.assert_array_equal(back.flow.update_ratio, [0.5, 0.125])
    assert back.flow.act_grad is None


def test_bad_numbers_are_strict_json_and_come_back(
    tmp_path: Path, make_record: MakeRecord, make_finding: MakeFinding
) -> None:
    path = tmp_path / "run.jsonl"
    sink = RunRecordSink(path)
    sink.start([])
    sink.record(make_record(0, [np.nan, np.inf, 1.0], frozen=np.array([True, False, False])))
    sink.finding(make_finding(evidence={"loss": math.nan, "peak": -math.inf, "bad": np.int64(3)}))
    sink.close()
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=refuse_constant)
    run = read(path)
    flow = run.records[0].flow
    assert flow is not None
    np.testing.assert_array_equal(flow.grad_norm, [np.nan, np.inf, 1.0])
    assert flow.has_grad.tolist() == [False, True, True]
    assert flow.frozen.tolist() == [True, False, False]
    evidence = run.findings[0].evidence
    assert math.isnan(float(evidence["loss"]))
    assert evidence["peak"] == -math.inf
    assert evidence["bad"] == 3


def test_names_are_written_once(tmp_path: Path, make_record: MakeRecord) -> None:
    path = tmp_path / "run.jsonl"
    sink = RunRecordSink(path)
    sink.start([])
    for step in range(3):
        sink.record(make_record(step))
    sink.close()
    assert path.read_text().count("net.1") == 1


def test_two_optimizers_keep_their_own_layers(tmp_path: Path, make_record: MakeRecord) -> None:
    path = tmp_path / "run.jsonl"
    sink = RunRecordSink(path)
    for layers in (("gen",), ("disc",), ("gen",)):
        sink.record(make_record(0, [1.0], layers=layers))
    sink.close()
    flows = [record.flow for record in read(path).records]
    assert [flow.layers for flow in flows if flow] == [("gen",), ("disc",), ("gen",)]


def test_a_killed_run_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    done = subprocess.run([sys.executable, "-c", CRASHING, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    run = read(path)
    assert [record.step for record in run.records] == list(range(5))
    assert run.footers == []


def test_a_line_cut_off_is_counted_and_left_out(tmp_path: Path, make_record: MakeRecord) -> None:
    path = tmp_path / "run.jsonl"
    sink = RunRecordSink(path)
    for step in range(3):
        sink.record(make_record(step))
    os.truncate(path, path.stat().st_size - 20)
    run = read(path)
    assert [record.step for record in run.records] == [0, 1]
    assert run.unreadable == 1
    sink.close()


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"record","step":"x","log_step":1,"scalars":{}}',
        '{"kind":"record","step":null,"log_step":1,"scalars":{}}',
        '{"kind":"record","step":1,"log_step":1,"scalars":null}',
        '{"kind":"record","step":1,"log_step":1,"scalars":{"grad/norm":"x"}}',
        "[" * 100_000,
    ],
    ids=["step", "no step", "no scalars", "scalar", "endless"],
)
def test_a_line_that_holds_no_record_is_counted_and_left_out(
    line: str, tmp_path: Path, make_record: MakeRecord
) -> None:
    path = tmp_path / "run.jsonl"
    sink = RunRecordSink(path)
    sink.record(make_record(0, [1.0]))
    sink.close()
    path.write_text(f"{line}\n{path.read_text()}")
    run = read(path)
    assert (len(run.records), run.unreadable) == (1, 1)


def test_a_name_that_is_no_utf_8_costs_no_line(tmp_path: Path, make_record: MakeRecord) -> None:
    path, odd = tmp_path / "run.jsonl", os.fsdecode(b"caf\xe9")
    sink = RunRecordSink(path, config={"folder": odd})
    sink.start([])
    sink.record(make_record(0, [1.0]))
    sink.close()
    run = read(path)
    assert run.headers[0]["config"] == {"folder": odd}
    assert len(run.records) == 1


def test_a_resumed_run_goes_on_behind_a_line_cut_off(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    path = tmp_path / "run.jsonl"
    subprocess.run([sys.executable, "-c", CRASHING, str(path)], check=False)
    os.truncate(path, path.stat().st_size - 20)
    second = RunRecordSink(path)
    second.start([])
    second.record(make_record(4))
    second.close()
    run = read(path)
    assert len(run.headers) == 2
    assert [record.step for record in run.records] == [0, 1, 2, 3, 4]


def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing\n[1]\n")
    with pytest.raises(ConfigurationError, match=r"notes\.txt is no run record"):
        read(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_once_and_training_goes_on(make_record: MakeRecord) -> None:
    told: list[str] = []
    sink = RunRecordSink("/dev/full", tell=told.append)
    sink.start([])
    for step in range(3):
        sink.record(make_record(step))
    sink.close()
    assert len(told) == 1
    assert "/dev/full is switched off, training goes on: OSError" in told[0]


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path, make_record: MakeRecord) -> None:
    (tmp_path / "taken").write_text("a file")
    told: list[str] = []
    sink = RunRecordSink(tmp_path / "taken" / "run.jsonl", tell=told.append)
    sink.start([])
    sink.record(make_record())
    sink.close()
    assert len(told) == 1


def test_nothing_is_made_where_nothing_is_told(tmp_path: Path) -> None:
    RunRecordSink(tmp_path / "run.jsonl").close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("layers", "budget_bytes"), [(75, 4_000), (2000, 100_000)])
def test_a_record_keeps_to_its_size(
    layers: int, budget_bytes: int, tmp_path: Path, make_record: MakeRecord
) -> None:
    values = 10 ** np.random.default_rng(0).normal(-2, 1, (5, layers))
    path = tmp_path / "run.jsonl"
    sink = RunRecordSink(path)
    families = ("weight_norm", "update_ratio", "zero_fraction", "act_grad")
    sink.record(make_record(0, values[0], **dict(zip(families, values[1:], strict=True))))
    sink.close()
    lines = path.read_text().splitlines()
    assert len(next(line for line in lines if '"record"' in line)) < budget_bytes


def test_a_table_is_read_back_and_a_later_one_of_its_name_replaces_it(tmp_path: Path) -> None:
    sink = RunRecordSink(tmp_path / "record.jsonl")
    sink.start(())
    for step in (10, 20):
        sink.table(
            Table(
                name="roofline",
                title="cost",
                step=step,
                columns=("layer", "time (ms)"),
                rows=(("net.0", 1.5), ("net.2", math.inf), ("net.4", None)),
            )
        )
    sink.close()
    (table,) = read(tmp_path / "record.jsonl").tables.values()
    assert table.step == 20
    assert table.columns == ("layer", "time (ms)")
    assert table.rows == (("net.0", 1.5), ("net.2", math.inf), ("net.4", None))
