"""What a study saw, before anything is judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradwatch.findings import LOSS
from gradwatch.roofline.events import Event
from gradwatch.roofline.phases import split_steps
from gradwatch.roofline.spans import Span
from gradwatch.roofline.timeline import FindSpan, Reader, Timeline, find_crossings

if TYPE_CHECKING:
    import torch

    from gradwatch.roofline.costs import LayerCost, Pair, Phase
    from gradwatch.roofline.phases import Crossing


def _nowhere(number: int, thread: int | None) -> Span:
    del number, thread
    return Span(LOSS, 0)


@dataclass(kw_only=True)
class Evidence:
    """What a study saw.

    Attributes:
        device: Where the model lies.
        timed: Edges of each timed step, the first of the next step included.
        costs: Layer → what its own work costs in one step.
        counts: (phase, operation) → launches in one step.
        pairs: How often an operation's output was read by the very next one.
        events: What the profiler recorded.
        find_span: Names the module that made an autograd node of the traced steps.
        timelines: The traced steps, given to their layers.
        blocked: Modules that could bear no hook → why.
        notes: What was not seen, and why.
        extra_seconds: Time the study took beyond the steps themselves.
    """

    device: torch.device
    timed: list[list[Crossing]] = field(default_factory=list)
    costs: dict[str, LayerCost] = field(default_factory=dict)
    counts: Counter[tuple[Phase, str]] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)
    events: list[Event] = field(default_factory=list)
    find_span: FindSpan = _nowhere
    timelines: list[Timeline] = field(default_factory=list)
    blocked: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    extra_seconds: float = 0.0

    def read_events(self) -> None:
        """Give the traced steps to their layers; the events themselves are let go."""
        counted = {name for _, name in self.counts}
        for crossings in split_steps(find_crossings(self.events)):
            start, end = crossings[0].seconds, crossings[-1].seconds
            own = [each for each in self.events if each.on_device or start <= each.start < end]
            reader = Reader(self.find_span, counted)
            self.timelines.append(reader.read(own, crossings))
        self.events = []
