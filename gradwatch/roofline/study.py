"""The course of a profile: a few steps to warm up, to time, to trace, to count; then off.

Whoever runs the steps tells when a border is crossed. Nothing here starts a forward or a
backward, so the training that is studied is the training that would have run.
"""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import torch

from gradwatch.roofline.evidence import Evidence
from gradwatch.roofline.stages import Counting, Timing, Tracing, WarmUp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from gradwatch.parts import Border
    from gradwatch.roofline.options import RooflineOptions


class Study:
    """Follow a few steps of a model.

    Args:
        model: The model, unwrapped.
        options: Which steps.

    Attributes:
        evidence: What was seen; complete once ``done``.
        done: Whether everything was seen and is off again.
        steps_needed: Steps the whole takes.
    """

    def __init__(self, model: nn.Module, options: RooflineOptions) -> None:
        """Prepare; nothing is attached yet."""
        first = next(model.parameters(), None)
        device = torch.device("cpu") if first is None else first.device
        self.evidence = Evidence(device=device)
        self.done = False
        self._plan: list[tuple[WarmUp, int]] = [
            (WarmUp(), options.warmup_steps),
            (Timing(self.evidence), options.timed_steps),
            (Tracing(self.evidence, model, nvtx=options.nvtx), options.traced_steps),
            (Counting(self.evidence, model), 1),
        ]
        self._watched = 1 + options.traced_steps
        self.steps_needed = options.warmup_steps + options.timed_steps + self._watched
        self._stage, self._left, self._updated = self._plan.pop(0)[0], options.warmup_steps, True
        self._begins: list[float] = []

    def cross(self, border: Border) -> None:
        """Notice a border; the study ends at the beginning of the step after its last.

        Args:
            border: Which one.
        """
        if self.done:
            return
        if border == "before_forward" and self._updated:
            self._updated = False
            self._begin_step()
        self._updated = self._updated or border == "after_step"
        if not self.done:
            self._stage.cross(border)

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Notice what a backward is about to begin from; nothing of it is held.

        Args:
            roots: The loss, or the model's outputs where that is not seen.
        """
        if not self.done:
            self._stage.before_backward(roots)

    def close(self) -> None:
        """Take everything off, wherever the study stands; safe to call twice."""
        self._stage.close()
        self.done = True

    def _begin_step(self) -> None:
        self._begins.append(time.perf_counter())
        while self._left == 0 and not self.done:
            self._stage.finish()
            if self._plan:
                self._stage, self._left = self._plan.pop(0)
                self._stage.open()
            else:
                self._end()
        self._left -= 1

    def _end(self) -> None:
        """Compare the steps that were watched with the usual one."""
        self.close()
        self.evidence.read_events()
        usual = median(after - before for before, after in pairwise(self._begins))
        took = time.perf_counter() - self._begins[-1 - self._watched]
        self.evidence.extra_seconds = max(took - usual * self._watched, 0.0)
