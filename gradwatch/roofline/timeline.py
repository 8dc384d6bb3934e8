"""Whose time it was: the profiler's events, given to layers.

A forward belongs to the innermost module whose range it lies in, a backward to the module that
made the autograd node: the profiler notes the node's number on both sides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast, get_args

from gradwatch.findings import INPUT, LOSS, OPTIMIZER
from gradwatch.flops import SILENT
from gradwatch.parts import Border
from gradwatch.roofline import phases
from gradwatch.roofline.events import Event
from gradwatch.roofline.phases import Crossing
from gradwatch.roofline.spans import MARK, Span

BORDER_MARK = "gradwatch|"
EVALUATE = "autograd::engine::evaluate_function: "
_OUTSIDE = {phases.OPTIMIZER: OPTIMIZER, phases.DATA_WAIT: INPUT, phases.HOST_TO_DEVICE: INPUT}
_COLLECTIVES = ("nccl", "gloo:", "mpi:", "ucc:")

FindSpan = Callable[[int, int | None], Span]


class Owner(NamedTuple):
    """Whose an event is.

    Attributes:
        layer: A layer, or ``<loss>``, ``<optimizer>``, ``<input>``.
        phase: As `gradwatch.roofline.phases` names them.
    """

    layer: str
    phase: str


class Launch(NamedTuple):
    """A kernel that ran (on a CPU: an operation that computed).

    Attributes:
        name: Its name.
        operation: Operation that launched it.
        owner: Whose it is.
        start: When it began, in seconds.
        seconds: How long it took.
        gap: How long the device stood still before it, within its phase.
    """

    name: str
    operation: str
    owner: Owner
    start: float
    seconds: float
    gap: float = 0.0


@dataclass(kw_only=True)
class Timeline:
    """One step, given to its owners.

    Attributes:
        span_seconds: Owner → time between its beginnings and ends on the host, without
            what lies in its children.
        calls: Owner → times that it was entered, by its caller or back from a child.
        launches: Kernels in the order they ran.
        phase_seconds: Phase → time on the host.
        communication: Intervals in which gradients travelled.
    """

    span_seconds: dict[Owner, float] = field(default_factory=dict)
    calls: Counter[Owner] = field(default_factory=Counter)
    launches: list[Launch] = field(default_factory=list)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    communication: list[phases.Interval] = field(default_factory=list)


@dataclass(kw_only=True)
class _Open:
    """A host event that is still open while its children are walked."""

    event: Event
    owner: Owner
    operation: str
    framed: bool


def find_crossings(events: Sequence[Event]) -> list[Crossing]:
    """Give the borders that stand in a trace, in the order of time.

    Args:
        events: The trace.
    """
    known = get_args(Border)
    return sorted(
        Crossing(event.start, cast("Border", event.name.removeprefix(BORDER_MARK)))
        for event in events
        if event.name.startswith(BORDER_MARK)
        and not event.on_device
        and event.name.removeprefix(BORDER_MARK) in known
    )


class Reader:
    """Give a step's events to their owners.

    Args:
        find_span: Names the module that made an autograd node, by number and thread.
        dispatched: Names of the operations that launch something, as counted before; every
            operation that is not known to be silent, where nothing was counted.
    """

    def __init__(self, find_span: FindSpan, dispatched: Collection[str]) -> None:
        """Remember how to ask."""
        self._find_span, self._dispatched = find_span, dispatched
        self._threads: dict[int, int] = {}
        self._stretches: list[phases.Stretch] = []
        self._infos: dict[int, _Open] = {}
        self._line = Timeline()
        self._last = LOSS

    def read(self, events: Sequence[Event], crossings: Sequence[Crossing]) -> Timeline:
        """Read one step.

        Args:
            events: Those that began in it.
            crossings: Its borders, in the order of time.

        Returns:
            The step's time by owner.
        """
        self._line, self._infos, self._last = Timeline(), {}, LOSS
        self._stretches = list(phases.stretches(crossings))
        self._line.phase_seconds = phases.sum_phases(crossings)
        # Calls of the driver are linked too, and count their numbers for themselves.
        hosts = [event for event in events if not (event.on_device or event.launched_by)]
        self._learn_threads(hosts)
        main = next((event.thread for event in hosts if event.name.startswith(BORDER_MARK)), 0)
        for thread in sorted({event.thread for event in hosts}):
            own = [event for event in hosts if event.thread == thread]
            self._walk(sorted(own, key=lambda each: (each.start, -each.end)), main=thread == main)
        self._read_device(events, {event.name for event in hosts})
        self._line.launches.sort(key=_start)
        return self._line

    def _learn_threads(self, hosts: Sequence[Event]) -> None:
        for event in hosts:
            if event.name.startswith(MARK):
                self._threads[event.thread] = int(event.name.split(":")[1])

    def _walk(self, events: Sequence[Event], *, main: bool) -> None:
        stack: list[_Open] = []
        for event in events:
            while stack and stack[-1].event.end <= event.start:
                stack.pop()
            travels = event.name.startswith(_COLLECTIVES)
            if travels:
                self._line.communication.append((event.start, event.end))
            if event.name.startswith(BORDER_MARK):
                continue
            if main or stack or travels or _is_frame(event):
                stack.append(self._open(event, stack[-1] if stack else None))

    def _open(self, event: Event, parent: _Open | None) -> _Open:
        framed = parent is not None and parent.framed
        owner = parent.owner if parent is not None else self._outside(event.start)
        if _is_frame(event):
            backward = framed and owner.phase == phases.BACKWARD
            own = self._frame_owner(event, backward=backward)
            self._spend(own, event.seconds)
            self._line.calls[own] += 1
            if framed:
                self._spend(owner, -event.seconds)
                self._line.calls[owner] += 1
            owner, framed = own, True
        elif not framed and _is_topmost(event, parent):
            self._spend(owner, event.seconds)
        within = parent.operation if parent is not None and not _is_frame(event) else ""
        operation = within or self._kernel_name(event, owner)
        opened = _Open(event=event, owner=owner, operation=operation, framed=framed)
        self._infos[event.identity] = opened
        if operation and not within:
            launch = Launch(operation, operation, owner, event.start, event.seconds)
            self._line.launches.append(launch)
        return opened

    def _frame_owner(self, event: Event, *, backward: bool) -> Owner:
        if event.name.startswith(MARK):
            layer = event.name.split(":", 2)[2]
            phase = phases.BACKWARD if backward else phases.FORWARD
            return Owner(layer, phase)
        if event.sequence >= 0:
            thread = self._threads.get(event.forward_thread)
            self._last = self._find_span(event.sequence, thread).layer
        return Owner(self._last, phases.BACKWARD)

    def _outside(self, start: float) -> Owner:
        at = bisect_right(self._stretches, start, key=lambda stretch: stretch.start) - 1
        phase = self._stretches[at].phase if at >= 0 else phases.OTHER
        return Owner(_OUTSIDE.get(phase, LOSS), phase)

    def _kernel_name(self, event: Event, owner: Owner) -> str:
        name = event.name.removeprefix("aten::")
        if name == event.name or name in SILENT:
            return ""
        counted = self._dispatched and owner.phase in {phases.FORWARD, phases.BACKWARD}
        return "" if counted and name not in self._dispatched else name

    def _spend(self, owner: Owner, seconds: float) -> None:
        self._line.span_seconds[owner] = self._line.span_seconds.get(owner, 0.0) + seconds

    def _read_device(self, events: Sequence[Event], ranges: Collection[str]) -> None:
        kernels = [event for event in events if event.on_device and event.name not in ranges]
        if not kernels:
            return
        known = [kernel for kernel in kernels if kernel.launched_by in self._infos]
        launches = sorted((self._launch(kernel) for kernel in known), key=_start)
        self._line.launches = list(_with_gaps(launches))
        travelled = [(own.start, own.end) for own in known if _is_collective(own)]
        self._line.communication = travelled or self._line.communication

    def _launch(self, kernel: Event) -> Launch:
        info = self._infos[kernel.launched_by]
        operation = info.operation or info.event.name
        return Launch(kernel.name, operation, info.owner, kernel.start, kernel.seconds)


def _is_frame(event: Event) -> bool:
    return event.name.startswith((MARK, EVALUATE))


def _is_topmost(event: Event, parent: _Open | None) -> bool:
    within = parent is not None and parent.event.name.startswith("aten::")
    return event.name.startswith("aten::") and not within


def _is_collective(event: Event) -> bool:
    return event.name.startswith(_COLLECTIVES)


def _start(launch: Launch) -> float:
    return launch.start


def _with_gaps(launches: Sequence[Launch]) -> Iterator[Launch]:
    """Note how long the device stood still before each kernel but the first of a phase."""
    end, phase = 0.0, ""
    for launch in launches:
        same = launch.owner.phase == phase
        yield launch._replace(gap=max(launch.start - end, 0.0) if same else 0.0)
        end, phase = max(end, launch.start + launch.seconds), launch.owner.phase
