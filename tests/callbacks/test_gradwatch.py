"""GradWatch is all monitors from one line, each of them to be set or left out."""

import pytest

from gradwatch import (
    AdaptiveLearningRateOptions,
    GradientFlowOptions,
    MemoryOptions,
    NonFiniteOptions,
)
from gradwatch.callbacks import GradWatch
from tests.kit import Net, build, fit, watcher


def names(callback: GradWatch) -> list[str]:
    return [part.name for part in callback.parts]


def test_all_is_on_by_default_but_what_changes_training_or_takes_seconds() -> None:
    kinds = ["non_finite", "gradient_flow", "memory_delta", "graph", "symptoms"]
    assert names(GradWatch()) == kinds


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("non_finite", "non_finite"),
        ("gradient_flow", "gradient_flow"),
        ("memory", "memory_delta"),
        ("graph", "graph"),
        ("symptoms", "symptoms"),
    ],
)
def test_each_part_can_be_left_out(option: str, name: str) -> None:
    assert name not in names(GradWatch(**{option: False}))  # type: ignore[arg-type]


def test_options_reach_their_parts() -> None:
    callback = GradWatch(
        non_finite=NonFiniteOptions(policy="warn", checkpoint=False),
        gradient_flow=GradientFlowOptions(patience=9),
        memory=MemoryOptions(),
        adaptive_lr=AdaptiveLearningRateOptions(target=3.0),
    )
    by_name = {part.name: part for part in callback.parts}
    assert by_name["non_finite"].options.policy == "warn"  # type: ignore[attr-defined]
    assert by_name["gradient_flow"].options.patience == 9  # type: ignore[attr-defined]
    assert by_name["adaptive_lr"].options.target == 3.0  # type: ignore[attr-defined]
    assert not callback.configuration.checkpoint


def test_all_parts_write_into_one_record() -> None:
    callback, sink = watcher(adaptive_lr=True)
    fit(build(Net), [callback], max_steps=2)
    keys = {key.partition("/")[0] for key in sink.records[-1].scalars}
    assert keys == {"grad", "mem", "lr"}


def test_with_nothing_watched_it_does_nothing() -> None:
    nothing = dict.fromkeys(("non_finite", "gradient_flow", "memory", "graph", "symptoms"), False)
    callback, sink = watcher(**nothing)
    fit(build(Net), [callback], max_steps=2)
    assert callback.findings == ()
    assert sink.coverage == []


def test_the_run_record_lies_beside_the_logs_and_can_be_turned_off() -> None:
    from pathlib import Path

    fit(build(Net), [GradWatch(console=False)], max_steps=1)
    fit(build(Net), [GradWatch(console=False, record=False)], max_steps=1)
    assert len(list(Path.cwd().rglob("record*.jsonl"))) == 1
