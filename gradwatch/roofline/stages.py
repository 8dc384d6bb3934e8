"""The stages of a study: each looks at a few steps and leaves what it saw in the evidence."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from torch.autograd.profiler import record_function

from gradwatch.layers import is_compiled
from gradwatch.memory.saved import saved_by_layer
from gradwatch.roofline.clock import clock_of
from gradwatch.roofline.costs import CostCounter, LayerCost
from gradwatch.roofline.events import Event, Recording
from gradwatch.roofline.phases import split_steps
from gradwatch.roofline.spans import Spans
from gradwatch.roofline.timeline import BORDER_MARK
from gradwatch.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from gradwatch.parts import Border
    from gradwatch.roofline.evidence import Evidence

OTHER_PROFILER = (
    "another profiler was recording, and torch has one per process: no kernel was traced; "
    "profile a run in which no other one runs"
)
COMPILED = (
    "something in the step is compiled, one piece to every counter and profiler, so no layer is "
    "judged: profile the model uncompiled to see its layers"
)
UNCOUNTED = "an operation could not be counted, so no layer is judged"
COMPILED_MARK = "Torch-Compiled Region"


class WarmUp:
    """Look at nothing: caches fill, algorithms are chosen, clocks settle."""

    def open(self) -> None:
        """Attach nothing."""

    def cross(self, border: Border) -> None:
        """Let it pass."""

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Have nothing to look at."""

    def finish(self) -> None:
        """Have nothing to leave."""

    def close(self) -> None:
        """Have nothing to take off."""


class Timing(WarmUp):
    """Time the phases of steps that nothing is attached to.

    Args:
        evidence: Where it goes.
    """

    def __init__(self, evidence: Evidence) -> None:
        """Take the device's clock."""
        self._evidence = evidence
        self._clock = clock_of(evidence.device)

    def cross(self, border: Border) -> None:
        """Stamp the border."""
        self._clock.stamp(border)

    def finish(self) -> None:
        """Leave the steps, each with the border that ends it."""
        self._clock.stamp("before_forward")
        self._evidence.timed = split_steps(self._clock.crossings())


class Counting(WarmUp):
    """Count operations, bytes and kernels by watching them.

    Args:
        evidence: Where it goes.
        model: The model.
    """

    def __init__(self, evidence: Evidence, model: nn.Module) -> None:
        """Prepare; nothing is attached yet."""
        self._evidence = evidence
        self._spans = Spans(model)
        self._counter = CostCounter(self._spans)
        self._saved: dict[str, int] = {}
        self._watching, self._undo = ExitStack(), Undo()
        self._model = model
        self._compiled = False
        self._returned = self._went_back = False

    def open(self) -> None:
        """Set the hooks, unless something is compiled: watched, it would not run as it is."""
        traced = any(COMPILED_MARK in event.name for event in self._evidence.events)
        self._compiled = traced or is_compiled(self._model)
        if self._compiled:
            self._evidence.notes.append(COMPILED)
        else:
            self._undo.add(self._spans.attach())

    def cross(self, border: Border) -> None:
        """Watch from where a forward begins to where its backward ends.

        Under manual optimization one training step holds several of them: watching goes on
        after each update until the training step returns.
        """
        if self._compiled:
            return
        if border == "before_forward":
            self._returned = self._went_back = False
            self._watch()
        elif border == "after_forward":
            self._returned = True
            if self._went_back:
                self._watching.close()
        elif border == "after_backward":
            self._went_back = True
            self._watching.close()
        elif border == "after_step" and not self._returned:
            self._watch()

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Read off the graph what each layer keeps; of several backwards the most counts."""
        if self._compiled:
            return
        own = [*self._model.parameters(), *self._model.buffers()]
        # Asking for what is kept may dispatch: no operation of the step.
        self._counter.paused = True
        saved = saved_by_layer(roots, own, lambda number: self._spans.find(number).layer)
        self._counter.paused = False
        for layer, size in saved.items():
            self._saved[layer] = max(size, self._saved.get(layer, 0))

    def _watch(self) -> None:
        self._watching.close()
        self._watching.enter_context(self._counter)

    def finish(self) -> None:
        """Leave the costs, if all of them could be counted."""
        self.close()
        self._counter.finish()
        if self._counter.error is not None:
            self._evidence.notes.append(f"{UNCOUNTED}: {self._counter.error!r}")
            return
        costs = self._counter.layers
        for layer, saved in self._saved.items():
            costs.setdefault(layer, LayerCost()).saved_bytes = float(saved)
        self._evidence.costs = costs
        self._evidence.counts, self._evidence.pairs = self._counter.counts, self._counter.pairs

    def close(self) -> None:
        """Take everything off."""
        self._watching.close()
        self._undo()


class Tracing(WarmUp):
    """Record steps with torch's profiler.

    Args:
        evidence: Where it goes.
        model: The model.
        nvtx: Whether each layer's forward is an NVTX range as well.
    """

    def __init__(self, evidence: Evidence, model: nn.Module, *, nvtx: bool) -> None:
        """Prepare; nothing is attached yet."""
        self._evidence = evidence
        self._spans = Spans(model, mark=True, nvtx=nvtx)
        self._recording: Recording | None = None
        self._undo = Undo()

    def open(self) -> None:
        """Start the profiler, if no other one runs."""
        recording = Recording(self._evidence.device)
        if not recording.start():
            self._evidence.notes.append(OTHER_PROFILER)
            return
        self._recording = recording
        self._undo.add(self._spans.attach())

    def cross(self, border: Border) -> None:
        """Write the border into the trace."""
        with record_function(f"{BORDER_MARK}{border}"):
            pass

    def finish(self) -> None:
        """Leave what was recorded."""
        if self._recording is None:
            return
        self.cross("before_forward")
        self._evidence.events = self._stop()
        self._evidence.find_span = self._spans.find
        self._evidence.blocked = self._spans.blocked
        if not self._evidence.events:
            self._evidence.notes.append(OTHER_PROFILER)

    def _stop(self) -> list[Event]:
        recording, self._recording = self._recording, None
        self._undo()
        return [] if recording is None else recording.stop()

    def close(self) -> None:
        """Stop the profiler and take the hooks off."""
        self._stop()
