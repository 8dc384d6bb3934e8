"""From snapshots at the borders of a step to differences per phase: pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gradwatch.memory.snapshot import Kind, MemorySnapshot
from gradwatch.parts import Border

MIB = 1024**2

BORDERS: dict[str, tuple[Border, Border]] = {
    "forward": ("before_forward", "after_forward"),
    "backward": ("after_forward", "after_backward"),
    "step": ("after_backward", "after_step"),
}
MEASURED = frozenset(border for pair in BORDERS.values() for border in pair)
_PREVIOUS: dict[Border, Border] = {end: start for start, end in BORDERS.values()}


class StepMemory(NamedTuple):
    """The snapshots of one micro-batch, as far as its borders came in order.

    Attributes:
        borders: Border → snapshot.
    """

    borders: Mapping[Border, MemorySnapshot]


def cross(memory: StepMemory, border: Border, snapshot: MemorySnapshot) -> StepMemory:
    """Take in one border.

    ``before_forward`` starts anew. Any other border counts for a difference only if the one
    before it was seen: a micro-batch without a backward leaves a gap, never a wrong pair.

    Args:
        memory: What the micro-batch has so far.
        border: The border that is crossed.
        snapshot: Where memory stands at it.

    Examples:
        >>> forward = cross(StepMemory({}), "before_forward", MemorySnapshot(allocated_bytes=5))
        >>> sorted(cross(forward, "after_step", MemorySnapshot(allocated_bytes=7)).borders)
        ['after_step', 'before_forward']
    """
    if border == "before_forward":
        return StepMemory({border: snapshot})
    # A border that comes twice (or late) makes everything after it belong to the past.
    later = {border, *_following(border)}
    kept = {name: seen for name, seen in memory.borders.items() if name not in later}
    return StepMemory({**kept, border: snapshot})


def _following(border: Border) -> list[Border]:
    order = list(_PREVIOUS)
    return order[order.index(border) + 1 :]


def differ(before: int | None, after: int | None) -> int | None:
    """Subtract where both are known."""
    return None if before is None or after is None else after - before


def phase_deltas(memory: StepMemory, field: str) -> dict[str, int]:
    """Give the change of one number over each phase that has both its borders.

    Args:
        memory: Snapshots of a micro-batch.
        field: A field of `MemorySnapshot`.

    Returns:
        ``"forward"``, ``"backward"``, ``"step"`` → bytes; phases with a gap are left out.
    """
    empty = MemorySnapshot()
    changes = {
        phase: differ(*(getattr(memory.borders.get(border, empty), field) for border in pair))
        for phase, pair in BORDERS.items()
    }
    return {phase: change for phase, change in changes.items() if change is not None}


def latest(memory: StepMemory) -> MemorySnapshot:
    """Give the snapshot of the last border seen; an empty one where there is none."""
    return [MemorySnapshot(), *memory.borders.values()][-1]


def memory_scalars(memory: StepMemory, kind: Kind) -> dict[str, float]:
    """Give the metrics of a step, bytes in MiB with the unit in the key.

    An accelerator has at most 14: ``mem/allocated_MiB``, ``mem/reserved_MiB`` and their
    changes ``…_forward_MiB``, ``…_backward_MiB``, ``…_step_MiB``; ``mem/peak_MiB``,
    ``mem/cached_MiB``, ``mem/inactive_split_MiB`` and its share of the reserved memory
    ``mem/fragmentation``, ``mem/alloc_retries``, ``mem/ooms``. A process has five:
    ``mem/process_MiB``, its three changes and ``mem/process_peak_MiB``.

    Args:
        memory: Snapshots of a step.
        kind: Whose memory it is.
    """
    last = latest(memory)
    if kind == "process":
        return {
            **_in_mib("mem/process", last.allocated_bytes, phase_deltas(memory, "allocated_bytes")),
            **_in_mib("mem/process_peak", last.peak_bytes, {}),
        }
    plain = {
        "mem/fragmentation": last.fragmentation,
        "mem/alloc_retries": last.alloc_retries,
        "mem/ooms": last.ooms,
    }
    return {
        **_in_mib("mem/allocated", last.allocated_bytes, phase_deltas(memory, "allocated_bytes")),
        **_in_mib("mem/reserved", last.reserved_bytes, phase_deltas(memory, "reserved_bytes")),
        **_in_mib("mem/peak", last.peak_bytes, {}),
        **_in_mib("mem/cached", last.cached_bytes, {}),
        **_in_mib("mem/inactive_split", last.inactive_split_bytes, {}),
        **{key: float(value) for key, value in plain.items() if value is not None},
    }


def _in_mib(prefix: str, level: int | None, deltas: Mapping[str, int]) -> dict[str, float]:
    levels = {} if level is None else {f"{prefix}_MiB": level / MIB}
    return levels | {f"{prefix}_{phase}_MiB": change / MIB for phase, change in deltas.items()}
