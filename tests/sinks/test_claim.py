"""Two runs that are alive in one folder keep a record each; one that is over is appended to."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradwatch.readings import StepRecord
from gradwatch.sinks import RunRecordSink, claim, read
from gradwatch.sinks.record_reader import RunRecord

MakeRecord = Callable[..., StepRecord]

LIVE = """
import sys
from gradwatch.readings import StepRecord
from gradwatch.sinks import RunRecordSink

sink = RunRecordSink(sys.argv[1])
sink.start([])
for step in range(5):
    sink.record(StepRecord(step=step, log_step=step, scalars={"grad/norm": 1.0}))
print(sink.path.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gradwatch_runs" / "record.jsonl"


@pytest.fixture
def live(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A run of another process that has recorded five steps and lives on."""
    with subprocess.Popen(
        [sys.executable, "-c", LIVE, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "record.jsonl"
        yield process
        process.kill()


def run(sink: RunRecordSink, record: StepRecord) -> RunRecord:
    sink.start([])
    sink.record(record)
    sink.close()
    return read(sink.path)


def test_a_second_live_run_takes_a_record_beside_the_first_and_says_so(
    path: Path, make_record: MakeRecord, live: "subprocess.Popen[str]"
) -> None:
    told: list[str] = []
    sink = RunRecordSink(path, tell=told.append)
    second = run(sink, make_record(70))
    assert live.poll() is None
    assert sink.path == path.with_name("record-2.jsonl")
    assert told == [f"gradwatch: another run writes to {path}; this one's is {sink.path}"]
    assert [record.step for record in second.records] == [70]
    assert [record.step for record in read(path).records] == [0, 1, 2, 3, 4]


def test_the_record_of_a_killed_run_is_free_again(
    path: Path, make_record: MakeRecord, live: "subprocess.Popen[str]"
) -> None:
    live.kill()
    live.wait()
    resumed = run(RunRecordSink(path), make_record(5))
    assert [record.step for record in resumed.records] == [0, 1, 2, 3, 4, 5]


def test_two_runs_of_one_process_keep_a_record_each(path: Path, make_record: MakeRecord) -> None:
    sinks = [RunRecordSink(path, tell=lambda _: None) for _ in range(3)]
    for step in range(2):
        for sink, name in zip(sinks, "abc", strict=True):
            sink.record(make_record(step, [1.0], layers=(name,)))
    for sink in sinks:
        sink.close()
    assert [sink.path.name for sink in sinks] == [
        "record.jsonl",
        "record-2.jsonl",
        "record-3.jsonl",
    ]
    flows = [[record.flow for record in read(sink.path).records] for sink in sinks]
    assert [{flow.layers for flow in own if flow} for own in flows] == [
        {("a",)},
        {("b",)},
        {("c",)},
    ]


def test_a_worker_that_holds_the_file_too_does_not_keep_a_record_that_is_closed(
    path: Path,
) -> None:
    first = claim.claim(path)
    holding = (first.file.fileno(),)
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=holding
    ) as worker:
        first.release()
        second = claim.claim(path)
        assert worker.poll() is None
        worker.kill()
    second.release()
    assert second.path == path


@pytest.mark.parametrize(("ends", "name"), [(True, "record.jsonl"), (False, "record-2.jsonl")])
def test_where_files_cannot_be_locked_a_record_without_its_end_counts_as_taken(
    ends: bool, name: str, path: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "fcntl", None)
    first = RunRecordSink(path)
    first.record(make_record(0))
    if ends:
        first.close()
    second = RunRecordSink(path, tell=lambda _: None)
    run(second, make_record(1))
    first.close()
    assert second.path.name == name
