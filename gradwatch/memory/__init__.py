"""Memory, phase by phase, and what its course means."""

from gradwatch.memory.checkpoints import heaviest, propose, saved_table
from gradwatch.memory.live import Held, census, describe, grown
from gradwatch.memory.options import MemoryOptions
from gradwatch.memory.part import MemoryDelta
from gradwatch.memory.phases import StepMemory, cross, memory_scalars, phase_deltas
from gradwatch.memory.rules import (
    judge_fragmentation,
    judge_growth,
    judge_retries,
)
from gradwatch.memory.saved import Layer, SavedMemory, measure_saved
from gradwatch.memory.snapshot import (
    AcceleratorMemory,
    MemorySnapshot,
    MemorySource,
    ProcessMemory,
    snapshot_from_stats,
    source_in_use,
)
from gradwatch.memory.story import (
    Story,
    judge_activations,
    judge_held_gradients,
    judge_kept_graphs,
    judge_temporaries,
)

__all__ = [
    "AcceleratorMemory",
    "Held",
    "Layer",
    "MemoryDelta",
    "MemoryOptions",
    "MemorySnapshot",
    "MemorySource",
    "ProcessMemory",
    "SavedMemory",
    "StepMemory",
    "Story",
    "census",
    "cross",
    "describe",
    "grown",
    "heaviest",
    "judge_activations",
    "judge_fragmentation",
    "judge_growth",
    "judge_held_gradients",
    "judge_kept_graphs",
    "judge_retries",
    "judge_temporaries",
    "measure_saved",
    "memory_scalars",
    "phase_deltas",
    "propose",
    "saved_table",
    "snapshot_from_stats",
    "source_in_use",
]
