"""What recorded snapshots mean: pure functions, one rule each.

Each rule is handed the snapshots taken after the last steps, oldest first. They judge an
accelerator's books; a process's resident memory grows and shrinks for too many innocent
reasons to accuse anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from gradwatch.findings import ROOT, Evidence, Finding
from gradwatch.memory.options import MemoryOptions
from gradwatch.memory.phases import MIB
from gradwatch.memory.snapshot import MemorySnapshot


def judge_growth(
    history: Sequence[MemorySnapshot], step: int, options: MemoryOptions
) -> Finding | None:
    """Tell memory that is higher after nearly every step than after the one before.

    After a step nothing but weights, optimizer state and what somebody holds is alive, so
    a batch of another shape does not show here.
    """
    levels = [seen.allocated_bytes for seen in history if seen.allocated_bytes is not None]
    if len(levels) < options.window_steps:
        return None
    levels = levels[-options.window_steps :]
    changes = [after - before for before, after in pairwise(levels)]
    grown = sum(change > 0 for change in changes) / len(changes)
    growth_MiB = (levels[-1] - levels[0]) / MIB
    if min(changes) < 0 or grown < options.growth_share or growth_MiB < options.growth_MiB:
        return None
    reserved = [seen.reserved_bytes or 0 for seen in history][-options.window_steps :]
    why = _explain_growth(reserved[-1] - reserved[0])
    return Finding(
        rule="memory_growth",
        layer=ROOT,
        severity="warning",
        step=step,
        summary="memory grows from step to step",
        evidence={
            "growth_MiB": growth_MiB,
            "growth_MiB_per_step": growth_MiB / len(changes),
            "reserved_growth_MiB": (reserved[-1] - reserved[0]) / MIB,
            "allocated_MiB": levels[-1] / MIB,
            "steps": len(changes),
        },
        cause=why.cause,
        remedy=why.remedy,
    )


class _Growth(NamedTuple):
    cause: str
    remedy: str


def _explain_growth(reserved_growth_bytes: int) -> _Growth:
    if reserved_growth_bytes > 0:
        return _Growth(
            cause="allocated and reserved rise together: graphs of past steps are kept alive",
            remedy="store losses and outputs as .detach() or .item(); look for retain_graph=True, "
            "retain_grad() and lists of tensors that still require a gradient",
        )
    return _Growth(
        cause="allocated rises within what is reserved: tensors are kept from step to step",
        remedy="look for gradients or results that are collected and never let go",
    )


def judge_retries(
    history: Sequence[MemorySnapshot], step: int, _options: MemoryOptions
) -> Finding | None:
    """Tell that an allocation failed until the cache was emptied, since the step before."""
    before, after = history[-2:] if len(history) > 1 else (MemorySnapshot(), MemorySnapshot())
    retries = (after.alloc_retries or 0) - (before.alloc_retries or 0)
    if retries <= 0:
        return None
    evidence: dict[str, Evidence] = {
        "new_retries": retries,
        "retries": after.alloc_retries or 0,
        "ooms": after.ooms or 0,
        "reserved_MiB": (after.reserved_bytes or 0) / MIB,
        "peak_MiB": (after.peak_bytes or 0) / MIB,
    }
    return Finding(
        rule="memory_retries",
        layer=ROOT,
        severity="warning",
        step=step,
        summary="the device was full: the cache was emptied to make room",
        evidence=evidence,
        cause="the peak of a step comes close to the device's memory; each retry waits for the "
        "device and gives the whole cache back",
        remedy="a smaller batch with accumulation, checkpointing of the largest activations, or "
        "PYTORCH_ALLOC_CONF=expandable_segments:True where batches change shape",
    )


def judge_fragmentation(
    history: Sequence[MemorySnapshot], step: int, options: MemoryOptions
) -> Finding | None:
    """Tell that a large share of the reserved memory has been split off and unused for long."""
    window = history[-options.window_steps :]
    if len(window) < options.window_steps or not all(_fragmented(s, options) for s in window):
        return None
    last = window[-1]
    return Finding(
        rule="memory_fragmentation",
        layer=ROOT,
        severity="info",
        step=step,
        summary="reserved memory is fragmented",
        evidence={
            "fragmentation": last.fragmentation or 0.0,
            "inactive_split_MiB": (last.inactive_split_bytes or 0) / MIB,
            "reserved_MiB": (last.reserved_bytes or 0) / MIB,
            "steps": len(window),
        },
        cause="blocks were split for tensors of changing sizes; the free pieces can neither be "
        "joined nor given back",
        remedy="PYTORCH_ALLOC_CONF=expandable_segments:True, or pad batches to few shapes",
    )


def _fragmented(seen: MemorySnapshot, options: MemoryOptions) -> bool:
    return (seen.fragmentation or 0.0) >= options.fragmentation and (
        seen.inactive_split_bytes or 0
    ) >= options.fragmented_MiB * MIB


Rule = Callable[[Sequence[MemorySnapshot], int, MemoryOptions], Finding | None]
RULES: tuple[Rule, ...] = (judge_growth, judge_retries, judge_fragmentation)
