"""What the profiler recorded, as plain values.

The profiler's own list of Python objects costs a tenth of a millisecond an event; the raw
events behind it cost a twentieth of that, and hold all that is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd import profiler
from torch.profiler import DeviceType

from gradwatch.flops import SILENT
from gradwatch.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Sequence

NS = 1e-9
_QUIET = frozenset(f"aten::{name}" for name in SILENT)


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
    """A run of torch's profiler that gives way to any other one.

    torch has one profiler per process, and the last to start takes it over: ours would end
    without a word, and its end would then end the other's. So ours does not start beside
    another one, and stops before another one starts.

    Args:
        device: Device whose kernels are wanted.
    """

    def __init__(self, device: torch.device) -> None:
        """Prepare; nothing is recorded yet."""
        accelerator = device.type if device.type != "cpu" else None
        self._profiler = profiler.profile(use_device=accelerator)
        self._undo, self._runs = Undo(), False

    def start(self) -> bool:
        """Start recording.

        Returns:
            False where another profiler runs: nothing was started.
        """
        if another_profiler_runs():
            return False
        self._profiler.__enter__()
        self._runs = True
        for name in ("_prepare_trace", "_start_trace"):
            self._watch(name)
        return True

    def stop(self) -> list[Event]:
        """Stop recording.

        Returns:
            What was recorded; nothing if it had to give way.
        """
        if not self._runs:
            return []
        self._end()
        results = self._profiler.kineto_results
        return [] if results is None else _plain(results.events())

    def _end(self) -> None:
        self._runs = False
        self._undo()
        self._profiler.__exit__(None, None, None)

    def _watch(self, name: str) -> None:
        inner = getattr(profiler.profile, name)

        def give_way(other: profiler.profile) -> Any:  # noqa: ANN401 - as torch's own
            if self._runs:
                self._end()
            return inner(other)

        setattr(profiler.profile, name, give_way)
        self._undo.add(lambda: setattr(profiler.profile, name, inner))


def another_profiler_runs() -> bool:
    """Tell whether torch's profiler is recording in this process."""
    return torch._C._autograd._profiler_enabled()


def _plain(raw: Sequence[torch._C._autograd._KinetoEvent]) -> list[Event]:
    """Copy what is needed, by position: a step has thousands of events.

    Views and empty memory are left out: they launch nothing, on whatever device.
    """
    # Seconds since 1970 leave a double a quarter of a microsecond: count from the first event.
    first = min((each.start_ns() for each in raw), default=0)
    return [
        Event(
            name,
            (each.start_ns() - first) * NS,
            (each.start_ns() - first + each.duration_ns()) * NS,
            each.start_thread_id(),
            each.sequence_nr(),
            each.fwd_thread_id(),
            each.correlation_id(),
            each.linked_correlation_id(),
            each.device_type() != DeviceType.CPU,
        )
        for each in raw
        if (name := each.name()) not in _QUIET
    ]
