"""The part over whole runs: recorded statistics, and a real training step on the processor."""

import mmap
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from gradwatch.memory import MemoryDelta, MemoryOptions, MemorySnapshot, snapshot_from_stats
from gradwatch.memory.phases import MIB
from gradwatch.memory.snapshot import Kind
from gradwatch.parts import Border
from gradwatch.readings import FlowReading, ParameterReading, StepReading

ORDER: list[Border] = ["before_forward", "after_forward", "after_backward", "after_step"]


class Recorded:
    """Plays recorded statistics, one dict of an allocator a reading."""

    kind: Kind = "accelerator"
    allocator = "native"

    def __init__(self, stats: Iterator[dict[str, int]]) -> None:
        self._stats = stats

    def read(self) -> MemorySnapshot:
        return snapshot_from_stats(next(self._stats))


def play_leak() -> Iterator[dict[str, int]]:
    """A graph of 8 MiB kept alive by each step."""
    step = 0
    while True:
        kept = 8 * step
        for level in (kept + 10, kept + 74, kept + 18, kept + 18):
            allocated, reserved = level * MIB, (level + 100) * MIB
            yield {"allocated_bytes.all.current": allocated, "reserved_bytes.all.current": reserved}
        step += 1


def make_reading(step: int) -> StepReading:
    nothing, ints = np.zeros(0), np.zeros(0, dtype=np.int64)
    flags = np.zeros(0, dtype=np.bool_)
    parameters = ParameterReading(
        names=(),
        layer=ints,
        group=ints,
        ndim=ints,
        has_grad=flags,
        grad_norm=nothing,
        weight_norm=nothing,
    )
    flow = FlowReading(
        layers=(), grad_norm=nothing, weight_norm=nothing, has_grad=flags, frozen=flags
    )
    return StepReading(
        step=step, log_step=step, optimizer="", parameters=parameters, flow=flow, grad_norm=0.0
    )


def run_steps(part: MemoryDelta, first: int, last: int) -> list[tuple[int, str]]:
    told = []
    for step in range(first, last):
        for border in ORDER[:3]:
            part.border(border)
        told += [(step, finding.rule) for finding in part.judge(make_reading(step))]
        part.border("after_step")
    return told


def test_a_leak_is_told_once_with_its_allocator_and_again_after_the_cooldown() -> None:
    part = MemoryDelta(MemoryOptions(window_steps=4, cooldown_steps=6), Recorded(play_leak()))
    assert run_steps(part, 0, 12) == [(4, "memory_growth"), (10, "memory_growth")]


def test_a_resumed_run_keeps_the_cooldown() -> None:
    options = MemoryOptions(window_steps=4, cooldown_steps=6)
    first = MemoryDelta(options, Recorded(play_leak()))
    told = run_steps(first, 0, 5)
    second = MemoryDelta(options, Recorded(play_leak()))
    second.load_state_dict(first.state_dict())
    assert told + run_steps(second, 5, 12) == [(4, "memory_growth"), (10, "memory_growth")]


def test_the_numbers_of_a_step_stand_until_the_next_one_is_done() -> None:
    part = MemoryDelta(source=Recorded(play_leak()))
    run_steps(part, 0, 1)
    first = dict(part.scalars())
    for border in ORDER[:3]:
        part.border(border)
    assert part.scalars() == first
    assert first["mem/allocated_forward_MiB"] == 64.0
    assert first["mem/allocated_backward_MiB"] == -56.0
    assert first["mem/allocated_step_MiB"] == 0.0


def test_a_batch_that_was_skipped_has_no_differences_and_the_next_has_its_own() -> None:
    part = MemoryDelta(source=Recorded(play_leak()))
    run_steps(part, 0, 1)
    part.border("before_forward")
    part.border("after_step")
    assert not [key for key in part.scalars() if "forward" in key or "backward" in key]
    run_steps(part, 2, 3)
    assert "mem/allocated_backward_MiB" in part.scalars()


def test_before_the_first_step_there_is_nothing_to_log() -> None:
    assert MemoryDelta().scalars() == {}


class Hoarder(nn.Module):
    """Takes pages from the system in its forward, as a large activation does."""

    def forward(self, x: Tensor) -> Tensor:
        self.pages = mmap.mmap(-1, 64 * MIB)
        self.pages.write(b"x" * (64 * MIB))
        return x


def test_a_real_step_shows_what_its_forward_took_and_says_nothing() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Hoarder(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    part = MemoryDelta()
    for step in range(4):
        part.border("before_forward")
        loss = model(torch.randn(4, 8)).square().mean()
        part.border("after_forward")
        loss.backward()
        part.border("after_backward")
        assert part.judge(make_reading(step)) == []
        optimizer.step()
        part.border("after_step")
        if step == 0:
            first = dict(part.scalars())
    assert first["mem/process_forward_MiB"] > 0.9 * 64
    assert first["mem/process_backward_MiB"] < 0.9 * 64
    assert first["mem/process_peak_MiB"] > 64
