"""What the course of memory means, over recorded statistics."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gradwatch.errors import ConfigurationError
from gradwatch.memory import (
    MemoryOptions,
    MemorySnapshot,
    judge_fragmentation,
    judge_growth,
    judge_retries,
)
from gradwatch.memory.phases import MIB

OPTIONS = MemoryOptions(window_steps=8)


def record(
    allocated_MiB: Sequence[float], reserved_MiB: Callable[[int], float] = lambda _: 4096.0
) -> list[MemorySnapshot]:
    return [
        MemorySnapshot(
            allocated_bytes=int(level * MIB), reserved_bytes=int(reserved_MiB(step) * MIB)
        )
        for step, level in enumerate(allocated_MiB)
    ]


def test_graphs_kept_alive_are_told_with_the_growth_a_step() -> None:
    history = record([100 + 5 * step for step in range(8)], lambda step: 400.0 + 10 * step)
    finding = judge_growth(history, 8, OPTIONS)
    assert finding is not None
    assert finding.evidence["growth_MiB"] == 35.0
    assert finding.evidence["growth_MiB_per_step"] == 5.0
    assert "graphs of past steps are kept alive" in finding.cause
    assert ".detach()" in finding.remedy


def test_tensors_kept_within_the_reserved_memory_have_another_cause() -> None:
    finding = judge_growth(record([100 + 5 * step for step in range(8)]), 8, OPTIONS)
    assert finding is not None
    assert "within what is reserved" in finding.cause


@pytest.mark.parametrize(
    "levels",
    [
        [100.0] * 8,
        [10.0, *[100.0] * 7],
        [100 + 0.01 * step for step in range(8)],
        [100, 150, 120, 170, 140, 190, 160, 210],
        [100 + 5 * step for step in range(7)],
    ],
    ids=["flat", "optimizer state of step one", "a few bytes", "up and down", "too few steps"],
)
def test_what_is_no_leak_says_nothing(levels: list[float]) -> None:
    assert judge_growth(record(levels), 8, OPTIONS) is None


def test_a_retried_allocation_is_told_once_it_happens() -> None:
    history = [MemorySnapshot(alloc_retries=count, ooms=0) for count in (0, 2, 2)]
    finding = judge_retries(history[:2], 5, OPTIONS)
    assert finding is not None
    assert finding.evidence["new_retries"] == 2
    assert judge_retries(history, 6, OPTIONS) is None


@pytest.mark.parametrize("history", [[], [MemorySnapshot(alloc_retries=3)], [MemorySnapshot()] * 2])
def test_retries_from_before_the_watch_or_unknown_are_not_told(
    history: list[MemorySnapshot],
) -> None:
    assert judge_retries(history, 5, OPTIONS) is None


def test_lasting_fragmentation_is_told_with_the_split_memory() -> None:
    seen = MemorySnapshot(reserved_bytes=1000 * MIB, inactive_split_bytes=400 * MIB)
    finding = judge_fragmentation([seen] * 8, 8, OPTIONS)
    assert finding is not None
    assert finding.severity == "info"
    assert finding.evidence["fragmentation"] == 0.4
    assert finding.evidence["inactive_split_MiB"] == 400.0


@pytest.mark.parametrize(
    "seen",
    [
        MemorySnapshot(reserved_bytes=0, inactive_split_bytes=0),
        MemorySnapshot(reserved_bytes=100 * MIB, inactive_split_bytes=90 * MIB),
        MemorySnapshot(allocated_bytes=10 * MIB, reserved_bytes=5000 * MIB, inactive_split_bytes=0),
        MemorySnapshot(reserved_bytes=5000 * MIB),
    ],
    ids=["nothing reserved", "small", "plain cache", "unknown"],
)
def test_what_is_no_fragmentation_says_nothing(seen: MemorySnapshot) -> None:
    assert judge_fragmentation([seen] * 8, 8, OPTIONS) is None


def test_fragmentation_that_comes_and_goes_says_nothing() -> None:
    split = MemorySnapshot(reserved_bytes=1000 * MIB, inactive_split_bytes=400 * MIB)
    whole = replace_split(split, 0)
    assert judge_fragmentation([*[split] * 7, whole], 8, OPTIONS) is None


def replace_split(seen: MemorySnapshot, split_bytes: int) -> MemorySnapshot:
    return seen._replace(inactive_split_bytes=split_bytes)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window_steps": 1}, "window_steps must be a whole number of 2 or more"),
        ({"window_steps": 2.5}, "window_steps must be a whole number"),
        ({"growth_MiB": 0.0}, "growth_MiB must be a positive"),
        ({"fragmentation": 30.0}, r"fragmentation is a share in \(0, 1\]"),
        ({"cooldown_steps": -1}, "cooldown_steps must be a positive"),
    ],
)
def test_nonsense_is_refused_with_the_options_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replace(OPTIONS, **wrong)
