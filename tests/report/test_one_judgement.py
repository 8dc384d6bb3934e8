"""A run's health is judged once: the report and W&B's table of runs say the same of it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch import Finding, MemorySink, StepRecord
from gradwatch.report.story import read_story
from gradwatch.report.verdict import judge
from gradwatch.sinks.story import Story
from tests.report.records import RECORD, fault, step, write

INF = float("inf")
Told = Sequence[StepRecord | Finding]
CASES: dict[str, tuple[Told, str, str]] = {
    "nothing": ([], "empty", "nothing recorded"),
    "well": ([step(0), step(1)], "healthy", "healthy"),
    "worth knowing": ([step(0), fault(0, severity="info")], "healthy", "healthy"),
    "skipped": ([step(0), step(1, (1, INF, 1, 1), grad__skipped=1.0)], "healthy", "healthy"),
    "untold": ([step(0), step(1, (1, INF, 1, 1))], "warning", "A gradient was non-finite at"),
    "warned": ([step(0), fault(4)], "warning", "vanishing in blocks.1 at step 4"),
    "late": (
        [step(9), fault(9, "head", severity="error"), fault(2, severity="error")],
        "error",
        "vanishing in blocks.1 at step 2",
    ),
}  # fmt: skip


def take(told: Told) -> Story:
    story = Story()
    for one in told:
        story.record(one) if isinstance(one, StepRecord) else story.add(one)
    return story


@pytest.mark.parametrize("case", CASES)
def test_report_and_table_of_runs_agree(case: str) -> None:
    told, state, words = CASES[case]
    write(told)
    verdict, summary = judge(read_story(RECORD)), take(told).summary()
    assert verdict.state == state
    assert summary["flow/verdict"].startswith(words)
    assert summary.get("flow/worst_layer", "") == verdict.worst_layer


def test_a_training_whose_monitor_is_off_is_called_healthy_by_neither() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sink = MemorySink()
    options = {"console": False, "record": True, "non_finite": False, "log_every_n_steps": 1}
    with gradwatch.watch(model, optimizer, sinks=[sink], **options):  # type: ignore[arg-type]
        for scale in (1.0, INF):
            optimizer.zero_grad()
            (model(torch.ones(3, 2)).sum() * scale).backward()
            optimizer.step()
    assert sink.findings == []
    report = judge(read_story(Path("gradwatch_runs", "record.jsonl")))
    assert report.headline == "Needs a look"
    assert report.sentence == take(sink.records).summary()["flow/verdict"]
