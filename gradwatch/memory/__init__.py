"""Memory, phase by phase, and what its course means."""

from gradwatch.memory.part import MemoryDelta
from gradwatch.memory.phases import StepMemory, cross, memory_scalars, phase_deltas
from gradwatch.memory.rules import (
    MemoryOptions,
    judge_fragmentation,
    judge_growth,
    judge_retries,
)
from gradwatch.memory.snapshot import (
    AcceleratorMemory,
    MemorySnapshot,
    MemorySource,
    ProcessMemory,
    snapshot_from_stats,
    source_in_use,
)

__all__ = [
    "AcceleratorMemory",
    "MemoryDelta",
    "MemoryOptions",
    "MemorySnapshot",
    "MemorySource",
    "ProcessMemory",
    "StepMemory",
    "cross",
    "judge_fragmentation",
    "judge_growth",
    "judge_retries",
    "memory_scalars",
    "phase_deltas",
    "snapshot_from_stats",
    "source_in_use",
]
