"""Steps that were judged and wait for what their update did: it rides in the next transfer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gradwatch.boarding import board, collect, total_norm
from gradwatch.readings import StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    from gradwatch.measure import OptimizerView
    from gradwatch.norms import NormGroup
    from gradwatch.readings import FloatArray, FlowReading, StepReading
    from gradwatch.transfer import Transfer


@dataclass(kw_only=True)
class Pending:
    """One such step.

    Attributes:
        reading: The step's reading.
        view: The optimizer's view.
        copies: Parameters before the update, until it is done.
        measure_clipped: Whether the norm after clipping has to be measured.
        moved: Update norms on the device.
        clipped: Gradient norms after clipping, on the device.
        scalars: The parts' metrics, once the update is done.
    """

    reading: StepReading
    view: OptimizerView
    copies: list[Tensor] | None = None
    measure_clipped: bool = False
    moved: tuple[NormGroup, ...] = ()
    clipped: tuple[NormGroup, ...] = ()
    scalars: Mapping[str, float] | None = None

    def updated(self) -> None:
        """Measure what the update did and free the copies."""
        if self.copies is not None:
            self.moved = tuple(self.view.moved(self.copies))
            self.copies = None
        if self.measure_clipped:
            self.clipped = tuple(self.view.gradient_groups())

    def load(self, transfer: Transfer, number: int) -> None:
        """Put what was measured on board."""
        board(transfer, f"moved{number}", self.moved)
        board(transfer, f"clipped{number}", self.clipped)

    def record(
        self, values: Mapping[str, FloatArray], number: int, *, with_flow: bool
    ) -> StepRecord:
        """Complete the step's record with what the transfer brought.

        Args:
            values: What the transfer brought.
            number: Number this step was loaded under.
            with_flow: Whether the per-layer profile belongs into the record.
        """
        scalars = {**(self.scalars or {}), **self._norm_clipped(values, number)}
        return StepRecord(
            step=self.reading.step,
            log_step=self.reading.log_step,
            scalars={name: value for name, value in scalars.items() if np.isfinite(value)},
            flow=self._flow(values, number) if with_flow else None,
        )

    def _flow(self, values: Mapping[str, FloatArray], number: int) -> FlowReading:
        flow, has_grad = self.reading.flow, self.reading.parameters.has_grad
        if not self.moved:
            return flow
        moved = collect(values, f"moved{number}", self.moved, _size(self.moved))
        return replace(flow, update_ratio=self.view.update_ratio(moved, has_grad, flow.weight_norm))

    def _norm_clipped(self, values: Mapping[str, FloatArray], number: int) -> dict[str, float]:
        if not self.clipped:
            return {}
        norms = collect(values, f"clipped{number}", self.clipped, _size(self.clipped))
        suffix = f"/{self.reading.optimizer}" if self.reading.optimizer else ""
        return {f"grad/norm_clipped{suffix}": total_norm(norms)}


class Ledger:
    """The steps that wait, and how they are told.

    Args:
        scalars: Gives the parts' metrics of the step judged last.
        with_flow: Whether records hold the per-layer profile.
    """

    def __init__(self, scalars: Callable[[], Mapping[str, float]], *, with_flow: bool) -> None:
        """Start empty."""
        self._scalars, self._with_flow = scalars, with_flow
        self._waiting: list[tuple[Optimizer, Pending]] = []

    def add(self, optimizer: Optimizer, pending: Pending) -> None:
        """Let a step wait for its update."""
        self._waiting.append((optimizer, pending))

    def updated(self, optimizer: Optimizer) -> None:
        """Take in that an optimizer's update is done."""
        for owner, pending in self._waiting:
            if owner is optimizer:
                pending.updated()

    def settle(self) -> None:
        """Ask the parts for the metrics of steps that are done, or were skipped."""
        for _, pending in self._waiting:
            if pending.scalars is None:
                pending.copies = None
                pending.scalars = self._scalars()

    def load(self, transfer: Transfer) -> None:
        """Put what the updates did on board."""
        for number, (_, pending) in enumerate(self._waiting):
            pending.load(transfer, number)

    def records(self, values: Mapping[str, FloatArray], *, last: bool) -> Iterator[StepRecord]:
        """Give the complete records of the steps that sinks want, and forget all steps.

        Args:
            values: What the transfer brought.
            last: True at the end of a run, where the last step is wanted in any case.
        """
        self.settle()
        waiting, self._waiting = self._waiting, []
        for number, (_, pending) in enumerate(waiting):
            if last or pending.reading.logged:
                yield pending.record(values, number, with_flow=self._with_flow)


def _size(groups: tuple[NormGroup, ...]) -> int:
    return sum(len(group.places) for group in groups)
