"""What the profiler recorded, as plain values.

The profiler's own list of Python objects costs a tenth of a millisecond an event; the raw
events behind it cost a twentieth of that, and hold all that is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.autograd import profiler
from torch.profiler import DeviceType

if TYPE_CHECKING:
    from collections.abc import Iterable

NS = 1e-9


class Event(NamedTuple):
    """One interval of a trace.

    Attributes:
        name: Name of an operation, a range or a kernel.
        start: When it began, in seconds.
        end: When it ended.
        thread: Thread it ran on, as the profiler counts them.
        sequence: Number of the autograd node it makes or runs; −1 where there is none.
        forward_thread: Thread that made the node, for one that runs backward.
        identity: Its own number.
        launched_by: On a device: ``identity`` of the operation that launched it; else 0.
        on_device: Whether it ran on an accelerator.
    """

    name: str
    start: float
    end: float
    thread: int = 0
    sequence: int = -1
    forward_thread: int = 0
    identity: int = 0
    launched_by: int = 0
    on_device: bool = False

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


class Recording:
    """A run of torch's profiler that gives way where another one runs.

    torch has one profiler per process: a second one would silently end the first.

    Args:
        device: Device whose kernels are wanted.
    """

    def __init__(self, device: torch.device) -> None:
        """Prepare; nothing is recorded yet."""
        accelerator = device.type if device.type != "cpu" else None
        self._profiler = profiler.profile(use_device=accelerator)

    def start(self) -> bool:
        """Start recording.

        Returns:
            False where another profiler runs: nothing was started.
        """
        if another_profiler_runs():
            return False
        self._profiler.__enter__()
        return True

    def stop(self) -> list[Event]:
        """Stop recording.

        Returns:
            What was recorded; nothing if another profiler ended the recording.
        """
        if not another_profiler_runs():
            return []
        self._profiler.__exit__(None, None, None)
        results = self._profiler.kineto_results
        return [] if results is None else _plain(results.events())


def another_profiler_runs() -> bool:
    """Tell whether torch's profiler is recording in this process."""
    return torch.autograd._profiler_enabled()


def _plain(raw: Iterable[torch._C._autograd._KinetoEvent]) -> list[Event]:
    return [
        Event(
            name=each.name(),
            start=each.start_ns() * NS,
            end=(each.start_ns() + each.duration_ns()) * NS,
            thread=each.start_thread_id(),
            sequence=each.sequence_nr(),
            forward_thread=each.fwd_thread_id(),
            identity=each.correlation_id(),
            launched_by=each.linked_correlation_id(),
            on_device=each.device_type() != DeviceType.CPU,
        )
        for each in raw
    ]
