"""Differences per phase, and the keys they are logged under."""

import pytest

from gradwatch.memory import MemorySnapshot, StepMemory, cross, memory_scalars, phase_deltas
from gradwatch.memory.phases import MIB
from gradwatch.parts import Border

ORDER: list[Border] = ["before_forward", "after_forward", "after_backward", "after_step"]


def walk(*seen: tuple[Border, int]) -> StepMemory:
    memory = StepMemory({})
    for border, allocated in seen:
        memory = cross(memory, border, MemorySnapshot(allocated_bytes=allocated))
    return memory


def test_each_phase_gets_the_difference_of_its_two_borders() -> None:
    memory = walk(*zip(ORDER, [100, 400, 150, 160], strict=True))
    assert phase_deltas(memory, "allocated_bytes") == {"forward": 300, "backward": -250, "step": 10}


def test_a_micro_batch_without_backward_leaves_a_gap_and_no_wrong_pair() -> None:
    memory = walk(("before_forward", 100), ("after_step", 500))
    assert phase_deltas(memory, "allocated_bytes") == {}


@pytest.mark.parametrize("missing", ORDER)
def test_one_missing_border_takes_only_the_phases_it_bounds(missing: Border) -> None:
    rest = [(border, 10 * index) for index, border in enumerate(ORDER) if border != missing]
    bounded = {"forward": ORDER[:2], "backward": ORDER[1:3], "step": ORDER[2:]}
    expected = {phase for phase, pair in bounded.items() if missing not in pair}
    assert set(phase_deltas(walk(*rest), "allocated_bytes")) == expected


def test_under_accumulation_the_last_micro_batch_is_the_one_told() -> None:
    first = zip(ORDER[:3], [100, 900, 100], strict=True)
    last = zip(ORDER, [100, 200, 100, 100], strict=True)
    assert phase_deltas(walk(*first, *last), "allocated_bytes")["forward"] == 100


def test_a_second_backward_belongs_to_no_finished_step() -> None:
    seen = [*zip(ORDER, [1, 2, 3, 4], strict=True), ("after_backward", 9)]
    assert "step" not in phase_deltas(walk(*seen), "allocated_bytes")


def test_an_unknown_number_gives_no_difference() -> None:
    memory = cross(StepMemory({}), "before_forward", MemorySnapshot())
    memory = cross(memory, "after_forward", MemorySnapshot(allocated_bytes=7))
    assert phase_deltas(memory, "allocated_bytes") == {}


def test_an_accelerator_has_fourteen_keys_with_their_units() -> None:
    memory = StepMemory({})
    for index, border in enumerate(ORDER):
        snapshot = MemorySnapshot(index * MIB, 8 * MIB, 9 * MIB, 2 * MIB, 1, 0)
        memory = cross(memory, border, snapshot)
    assert memory_scalars(memory, "accelerator") == {
        "mem/allocated_MiB": 3.0,
        "mem/allocated_forward_MiB": 1.0,
        "mem/allocated_backward_MiB": 1.0,
        "mem/allocated_step_MiB": 1.0,
        "mem/reserved_MiB": 8.0,
        "mem/reserved_forward_MiB": 0.0,
        "mem/reserved_backward_MiB": 0.0,
        "mem/reserved_step_MiB": 0.0,
        "mem/peak_MiB": 9.0,
        "mem/cached_MiB": 5.0,
        "mem/inactive_split_MiB": 2.0,
        "mem/fragmentation": 0.25,
        "mem/alloc_retries": 1.0,
        "mem/ooms": 0.0,
    }


def test_a_process_has_five_keys_and_says_that_it_is_the_process() -> None:
    memory = StepMemory({})
    for border in ORDER:
        memory = cross(memory, border, MemorySnapshot(allocated_bytes=MIB, peak_bytes=2 * MIB))
    values = memory_scalars(memory, "process")
    assert values["mem/process_MiB"] == 1.0
    assert values["mem/process_peak_MiB"] == 2.0
    assert sorted(values) == [
        "mem/process_MiB",
        "mem/process_backward_MiB",
        "mem/process_forward_MiB",
        "mem/process_peak_MiB",
        "mem/process_step_MiB",
    ]


def test_an_allocator_without_books_logs_nothing() -> None:
    memory = cross(StepMemory({}), "after_step", MemorySnapshot())
    assert memory_scalars(memory, "accelerator") == {}
