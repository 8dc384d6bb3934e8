"""Where memory stands at one moment, read without waiting for a device.

The caching allocator keeps its books on the host: reading them is a call of some ten
microseconds, launches nothing and synchronises nothing. Peak counters are read, never reset:
they belong to the user.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import torch

Kind = Literal["accelerator", "process"]

_STATM = "/proc/self/statm"
_PAGE_BYTES = mmap.PAGESIZE
_KIB = 1024


class MemorySnapshot(NamedTuple):
    """One reading; None where the allocator keeps no such number.

    Attributes:
        allocated_bytes: In live tensors; on a machine without an accelerator the resident
            memory of the process.
        reserved_bytes: Held by the caching allocator, live or not.
        peak_bytes: Highest ``allocated_bytes`` since the start or the user's last reset.
        inactive_split_bytes: Free pieces of blocks that are partly in use: what cannot be
            given back to the device.
        alloc_retries: Allocations that failed until the cache was emptied.
        ooms: Allocations that failed for good.
        total_bytes: Memory of the device.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    inactive_split_bytes: int | None = None
    alloc_retries: int | None = None
    ooms: int | None = None
    total_bytes: int | None = None

    @property
    def cached_bytes(self) -> int | None:
        """Reserved and not in live tensors: cache, most of it reusable."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return self.reserved_bytes - self.allocated_bytes

    @property
    def fragmentation(self) -> float | None:
        """Share of the reserved memory that is split off and unused; not 1 − allocated/reserved."""
        if not self.reserved_bytes or self.inactive_split_bytes is None:
            return None
        return self.inactive_split_bytes / self.reserved_bytes


class MemorySource(Protocol):
    """What memory is read from; tests hand in recorded statistics.

    Attributes:
        kind: Whether the numbers are an accelerator's or the process's.
        allocator: The allocator and its settings, as evidence.
    """

    @property
    def kind(self) -> Kind:
        """Whose memory it is."""

    @property
    def allocator(self) -> str:
        """Name of the allocator, with the settings that change what its numbers mean."""

    def read(self) -> MemorySnapshot:
        """Read where memory stands now."""


_KEYS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "peak_bytes": "allocated_bytes.all.peak",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
}


def snapshot_from_stats(stats: Mapping[str, Any]) -> MemorySnapshot:
    """Take the few numbers that matter out of an allocator's statistics.

    Args:
        stats: Flat, as of ``torch.cuda.memory_stats``, or nested, as of
            ``torch.cuda.memory_stats_as_nested_dict``; keys may be missing.

    Examples:
        >>> snapshot_from_stats({"allocated_bytes.all.current": 512}).allocated_bytes
        512
        >>> snapshot_from_stats({"allocated_bytes": {"all": {"peak": 1024}}}).peak_bytes
        1024
    """
    return MemorySnapshot(**{field: _find(stats, key) for field, key in _KEYS.items()})


def _find(stats: Mapping[str, Any], key: str) -> int | None:
    found: Any = stats.get(key)
    if found is None:
        found = stats
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, int) else None


class AcceleratorMemory:
    """Memory of the current device of one accelerator.

    Args:
        device_type: ``"cuda"`` (ROCm too), ``"xpu"`` or ``"mps"``.
    """

    kind: Kind = "accelerator"

    def __init__(self, device_type: str) -> None:
        self._read = _READERS[device_type]
        self.allocator = _describe_allocator(device_type)

    def read(self) -> MemorySnapshot:
        """Read the allocator's books; an empty snapshot before the device is in use."""
        return self._read()


def _read_cuda() -> MemorySnapshot:
    # Nested: flattening and sorting all the keys costs more than reading them.
    seen = snapshot_from_stats(torch.cuda.memory_stats_as_nested_dict())
    if seen.reserved_bytes is None:
        return seen
    # Kept on the host since the device was first used: asking for it waits for nothing.
    return seen._replace(total_bytes=torch.cuda.get_device_properties().total_memory)


def _read_xpu() -> MemorySnapshot:
    return snapshot_from_stats(torch.xpu.memory_stats_as_nested_dict())


def _read_mps() -> MemorySnapshot:
    return MemorySnapshot(
        allocated_bytes=torch.mps.current_allocated_memory(),
        reserved_bytes=torch.mps.driver_allocated_memory(),
    )


_READERS: dict[str, Callable[[], MemorySnapshot]] = {
    "cuda": _read_cuda,
    "xpu": _read_xpu,
    "mps": _read_mps,
}


def _describe_allocator(device_type: str) -> str:
    if device_type != "cuda":
        return device_type
    settings = (os.environ.get(f"PYTORCH_{kind}ALLOC_CONF", "") for kind in ("", "CUDA_", "HIP_"))
    expandable = any("expandable_segments:true" in text.lower() for text in settings)
    backend = torch.cuda.get_allocator_backend()
    return f"{backend}, expandable segments" if expandable else backend


class ProcessMemory:
    """Resident memory of this process.

    Noisy by nature: the C library keeps freed memory, and pages of memory-mapped data count
    once they are touched. Without ``/proc`` only the peak is known, on Windows nothing.
    """

    kind: Kind = "process"
    allocator = "resident memory of the process"

    def read(self) -> MemorySnapshot:
        """Read the resident size and its peak."""
        resident, peak = _read_resident(), _read_peak()
        # The kernel counts the two apart, and the peak may lag behind.
        peak = peak if resident is None or peak is None else max(resident, peak)
        return MemorySnapshot(allocated_bytes=resident, peak_bytes=peak)


def _read_resident() -> int | None:
    # File objects cost five times as much, and this runs four times a micro-batch.
    try:
        statm = os.open(_STATM, os.O_RDONLY)
    except OSError:
        return None
    try:
        pages = int(os.read(statm, 128).split()[1])
    finally:
        os.close(statm)
    return pages * _PAGE_BYTES


def _read_peak() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else _KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def source_in_use() -> MemorySource:
    """Give the accelerator that holds tensors of this process, else the process itself.

    Ask once the model stands on its device: a GPU that is there but unused is not in use.
    """
    for device_type, in_use in _IN_USE.items():
        if in_use():
            return AcceleratorMemory(device_type)
    return ProcessMemory()


_IN_USE: dict[str, Callable[[], bool]] = {
    "cuda": lambda: torch.cuda.memory_reserved() > 0,
    "xpu": lambda: torch.xpu.memory_reserved() > 0,
    "mps": lambda: torch.backends.mps.is_available() and torch.mps.current_allocated_memory() > 0,
}
