"""The verdict of a run, also where it was resumed, and the tables that go with it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import wandb

from gradwatch.findings import Finding
from gradwatch.readings import StepRecord
from gradwatch.sinks import WandbSink
from gradwatch.sinks.story import MOST_KEPT, Story
from gradwatch.sinks.wandb_tables import told_table
from gradwatch.tables import Table

MakeFinding = Callable[..., Finding]
MakeRecord = Callable[..., StepRecord]
FinishRun = Callable[[], Any]


def test_the_first_of_the_gravest_is_the_worst(make_finding: MakeFinding) -> None:
    story = Story()
    for severity, layer in (("info", "a"), ("warning", "b"), ("error", "c"), ("error", "d")):
        story.add(make_finding(severity=severity, layer=layer))
    assert story.summary()["flow/worst_layer"] == "c"
    assert story.summary()["flow/finding_count"] == 3


def test_what_is_only_worth_knowing_leaves_a_run_healthy(
    make_finding: MakeFinding, make_record: MakeRecord
) -> None:
    story = Story()
    story.record(make_record())
    story.add(make_finding(severity="info"))
    assert story.summary() == {"flow/finding_count": 0, "flow/verdict": "healthy"}


def test_the_gravest_is_kept_however_late_it_comes(make_finding: MakeFinding) -> None:
    story = Story()
    for step in range(3 * MOST_KEPT):
        story.add(make_finding(step=step))
    story.add(make_finding(rule="non_finite", layer="late", severity="error", step=7000))
    assert len(story.findings) == MOST_KEPT + 1
    assert story.summary() | {"flow/verdict": ""} == {
        "flow/finding_count": 3 * MOST_KEPT + 1,
        "flow/verdict": "",
        "flow/worst_layer": "late",
        "grad/first_non_finite_step": 7000,
    }


def test_a_resumed_run_does_not_call_healthy_what_was_not(make_finding: MakeFinding) -> None:
    first, second = Story(), Story()
    first.add(make_finding(rule="non_finite", layer="attn", severity="error", step=12))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.add(make_finding(step=90))
    assert second.summary() == first.summary() | {"flow/finding_count": 2}
    assert [finding.step for finding in second.findings] == [12, 90]


def read_table(run: Any, key: str) -> Any:
    path = next(row[f"{key}/path"] for row in run.rows() if f"{key}/path" in row)
    return json.loads((run.folder / "files" / path).read_text(), parse_constant=pytest.fail)


def test_a_told_table_becomes_one_of_wandb_under_its_place(finish_run: FinishRun) -> None:
    sink = WandbSink(wandb.init(project="test", mode="offline"), pictures=False)
    columns = ("layer", "time (ms)", "note")
    rows = (("a", 1.5, None), ("b", 2, "slow"), ("c", float("nan"), 7))
    for name in ("roofline", "trials", "own"):
        sink.table(Table(name=name, title="t", step=3, columns=columns, rows=rows))
    run = finish_run()
    for key in ("roofline/table", "fused/trials", "own/table"):
        table = read_table(run, key)
        assert table["columns"] == list(columns)
        assert table["data"] == [["a", 1.5, None], ["b", 2, "slow"], ["c", "nan", 7]]


def test_a_column_of_one_kind_keeps_its_kind() -> None:
    pure = Table(name="t", title="", step=0, columns=("a",), rows=((1,), (2.5,), (None,)))
    kind = told_table(pure)._column_types.params["type_map"]["a"]
    assert "Number" in str(kind.params)


def test_an_empty_table_is_written_too(finish_run: FinishRun) -> None:
    sink = WandbSink(wandb.init(project="test", mode="offline"), pictures=False)
    sink.table(Table(name="trials", title="t", step=0, columns=("a", "b"), rows=()))
    assert read_table(finish_run(), "fused/trials")["data"] == []


def test_a_long_table_is_bounded() -> None:
    rows = tuple((i,) for i in range(5000))
    assert (
        len(told_table(Table(name="t", title="", step=0, columns=("a",), rows=rows)).data) == 1000
    )
