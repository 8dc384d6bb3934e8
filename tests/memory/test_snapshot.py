"""What is read, and from where: an allocator's statistics, or the process."""

import mmap
from types import SimpleNamespace

import pytest
import torch

from gradwatch.memory import (
    MemorySnapshot,
    ProcessMemory,
    snapshot_from_stats,
    source_in_use,
)
from gradwatch.memory import snapshot as module

FLAT = {
    "allocated_bytes.all.current": 700,
    "allocated_bytes.all.peak": 900,
    "allocated_bytes.large_pool.current": 1,
    "reserved_bytes.all.current": 1000,
    "inactive_split_bytes.all.current": 250,
    "num_alloc_retries": 2,
    "num_ooms": 1,
    "segment.all.current": 4,
}
NESTED = {
    "allocated_bytes": {"all": {"current": 700, "peak": 900}, "large_pool": {"current": 1}},
    "reserved_bytes": {"all": {"current": 1000}},
    "inactive_split_bytes": {"all": {"current": 250}},
    "num_alloc_retries": 2,
    "num_ooms": 1,
}


@pytest.mark.parametrize("stats", [FLAT, NESTED], ids=["flat", "nested"])
def test_the_six_numbers_are_found_in_either_form(stats: dict[str, object]) -> None:
    assert snapshot_from_stats(stats) == MemorySnapshot(700, 1000, 900, 250, 2, 1)


def test_fragmentation_is_what_cannot_be_given_back_and_the_rest_is_cache() -> None:
    seen = snapshot_from_stats(FLAT)
    assert seen.fragmentation == 0.25
    assert seen.cached_bytes == 300


@pytest.mark.parametrize("key", FLAT)
def test_a_missing_key_is_unknown_and_takes_nothing_else_with_it(key: str) -> None:
    whole = snapshot_from_stats(FLAT)
    seen = snapshot_from_stats({name: value for name, value in FLAT.items() if name != key})
    changed = [name for name in whole._fields if getattr(seen, name) != getattr(whole, name)]
    assert len(changed) <= 1
    assert [getattr(seen, name) for name in changed] == [None] * len(changed)


@pytest.mark.parametrize("stats", [{}, {"reserved_bytes.all.current": 0, **dict.fromkeys(["x"])}])
def test_nothing_reserved_is_not_divided_by(stats: dict[str, object]) -> None:
    assert snapshot_from_stats(stats).fragmentation is None
    assert snapshot_from_stats(stats).cached_bytes is None


def test_the_process_is_read_and_sees_pages_that_are_touched() -> None:
    source, size = ProcessMemory(), 64 * 1024**2
    # Straight from the system: the C library would hand out again what it kept.
    with mmap.mmap(-1, size) as pages:
        before = source.read().allocated_bytes or 0
        pages.write(b"x" * size)
        after = source.read()
    assert (after.allocated_bytes or 0) - before > 0.9 * size
    assert (after.peak_bytes or 0) > size


def test_a_system_without_proc_has_a_peak_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STATM", "nowhere/statm")
    assert ProcessMemory().read().allocated_bytes is None


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without accelerator")
def test_a_machine_without_accelerator_watches_the_process() -> None:
    assert source_in_use().kind == "process"


def test_an_accelerator_that_holds_memory_is_the_one_that_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 1000)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda: NESTED)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    card = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: card)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    source = source_in_use()
    assert source.kind == "accelerator"
    assert source.read() == snapshot_from_stats(FLAT)._replace(total_bytes=80 << 30)
    assert source.allocator == "native, expandable segments"
