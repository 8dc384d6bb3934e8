"""Try fused layers one kind at a time: prove, measure, keep or roll back.

Parity on live data first, then the time of forward and backward on the same micro-batch and random
numbers, against the model as it stands (with what was kept before). At the end all that was kept
together: time, memory, and a few steps of training beside the stock model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gradwatch.fused.bench import Bench, Dress
from gradwatch.fused.diagnose import diagnose
from gradwatch.fused.observe import observe, record
from gradwatch.fused.operation import Candidate
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.parity import Parity, check
from gradwatch.fused.plan import Plan
from gradwatch.fused.regression import Regression, guilty
from gradwatch.fused.rows import Rows, TrialRow
from gradwatch.fused.timing import Comparison, compare
from gradwatch.fused.wardrobe import Wardrobe
from gradwatch.ranks import Ranks
from gradwatch.roofline.verdicts import LayerVerdict

__all__ = ["Result", "Trial"]

NOT_CALLED = "it is not called in this step, or gets no gradient"
LATE = "the time for the trial was up"
ALL = "all kept changes"


class Result(NamedTuple):
    """What a trial came to.

    Attributes:
        kept: What the model is to wear.
        rows: What was tried, in order.
    """

    kept: tuple[Candidate, ...]
    rows: tuple[TrialRow, ...]


class Trial:
    """One trial on one micro-batch; the model is left as it was found.

    Args:
        bench: The micro-batch.
        options: When fused layers are tried and kept.
        ranks: The processes that train together; all enter the trial at the same step.
    """

    def __init__(self, bench: Bench, options: FusedBackwardOptions, ranks: Ranks) -> None:
        """Begin with nothing kept."""
        self._bench, self._options, self._ranks = bench, options, ranks
        self._rows = Rows()
        self._plan = Plan(options, ranks, self._rows)
        self._wardrobe = Wardrobe()
        self._kept: tuple[Candidate, ...] = ()
        self._late = time.monotonic() + options.max_seconds

    def run(self, again: Sequence[tuple[str, str, str]] | None = None) -> Result:
        """Try everything.

        Args:
            again: Keys of candidates kept in an earlier run on the same kind of device: they are
                proved again and put back on without being measured, and nothing else is tried.

        Returns:
            What to wear, and the rows of the table.
        """
        try:
            with self._bench.opened():
                seen = observe(self._bench, self._wardrobe.take_off)
                groups = self._plan.groups(self._bench.model, seen, self._diagnose())
                if self._options.mode == "advise":
                    self._plan.advise(groups)
                elif again is not None:
                    self._resume(groups, set(again))
                else:
                    self._try_all(groups)
        finally:
            self._wardrobe.take_off()
        return Result(self._kept, tuple(self._rows.rows))

    def _diagnose(self) -> Mapping[str, LayerVerdict]:
        """Say what bounds each layer, where that decides anything."""
        if self._options.mode == "force" or not self._options.profile:
            return {}
        return diagnose(self._bench, self._wardrobe.take_off)

    def _resume(self, groups: Sequence[list[Candidate]], keys: set[tuple[str, str, str]]) -> None:
        for group in groups:
            wanted = [each for each in group if each.key in keys]
            proved, parity = self._prove(wanted)
            if proved:
                self._kept += tuple(proved)
                reason = "kept in the run that was resumed, proved again"
                self._rows.add(proved, "kept", reason, parity=parity)

    def _try_all(self, groups: Sequence[list[Candidate]]) -> None:
        for group in groups:
            if self._time_is_up():
                self._rows.add(group, "not tried", LATE)
            else:
                self._try(group)
        self._settle()

    def _time_is_up(self) -> bool:
        return any(self._ranks.gather(time.monotonic() > self._late))

    def _try(self, group: Sequence[Candidate]) -> None:
        """Prove and measure one kind of change, and keep it if it pays."""
        covered = {inner for each in self._kept for inner in each.skipped.values()}
        free = [each for each in group if each.module not in covered]
        if not free:
            self._rows.add(group, "not tried", "it is part of a chain that was kept")
            return
        if self._options.mode == "force" and {each.module for each in self._kept} & {
            each.module for each in free
        }:
            self._rows.add(group, "not tried", "another provider's was forced before")
            return
        proved, parity = self._prove(free)
        if not proved:
            return
        rivals = {each.module for each in proved}
        beside = tuple(each for each in self._kept if each.module not in rivals)
        self._measure(proved, parity, (*beside, *proved))

    def _prove(self, group: Sequence[Candidate]) -> tuple[list[Candidate], Parity]:
        """Give those that agree on every rank, and the worst of their errors."""
        proved, worst = [], Parity(0.0, 0.0)
        for each in group:
            own = self._parity(each)
            reasons = [found.reason for found in self._ranks.gather(own) if found.reason]
            if reasons:
                self._rows.add([each], "rejected", reasons[0], parity=own)
                continue
            proved.append(each)
            worst = max(worst, own)
        return proved, worst

    def _parity(self, candidate: Candidate) -> Parity:
        worst = Parity(0.0, 0.0)
        calls = record(self._bench, self._dress(self._kept), candidate)
        for operation, call in zip(candidate.operations, calls, strict=True):
            if call is None or not any(grad is not None for grad in call.gradients):
                return Parity(0.0, 0.0, NOT_CALLED)
            own = check(operation, candidate.module, call, self._options.compile_seconds)
            if not own.agrees:
                return own
            worst = max(worst, own)
        return worst

    def _dress(self, candidates: Sequence[Candidate]) -> Dress:
        return lambda: self._wardrobe.wear(candidates)

    def _measure(
        self, group: Sequence[Candidate], parity: Parity, wanted: tuple[Candidate, ...]
    ) -> None:
        if self._options.mode == "force":
            self._kept = wanted
            self._rows.add(group, "kept", "forced", parity=parity)
            return
        found, error = self._compare(self._kept, wanted)
        paid = not error and found.faster(self._options.min_gain)
        peak = self._memory(self._kept, wanted)
        if paid:
            lost = [each for each in self._kept if each not in wanted]
            self._rows.change(lost, "replaced", "another provider was faster")
            self._kept = wanted
        self._rows.add(
            group,
            "kept" if paid else "rolled back",
            error or _why(found, paid=paid),
            parity=parity,
            comparison=found,
            peak_bytes=peak,
        )

    def _compare(
        self, before: Sequence[Candidate], after: Sequence[Candidate], gain: float | None = None
    ) -> tuple[Comparison, str]:
        """Measure two sets of swaps in turns; alike on all ranks, whatever one of them raises."""
        clock = _Clock(self._bench)
        found = compare(
            clock.of(self._dress(before)),
            clock.of(self._dress(after)),
            gain=self._options.min_gain if gain is None else gain,
            pairs=self._options.pairs,
            most_pairs=self._options.most_pairs,
            gather=self._ranks.gather,
        )
        errors = [each for each in self._ranks.gather(clock.error) if each]
        return found, errors[0] if errors else ""

    def _memory(self, before: Sequence[Candidate], after: Sequence[Candidate]) -> int | None:
        stock = self._bench.peak_bytes(self._dress(before))
        worn = self._bench.peak_bytes(self._dress(after))
        return None if stock is None or worn is None else worn - stock

    def _settle(self) -> None:
        """Judge everything that was kept together, against the stock model."""
        if not self._kept:
            return
        self._drop_what_drifts()
        if self._options.mode == "force" or not self._kept:
            return
        found, error = self._compare((), self._kept, gain=0.0)
        paid = not error and found.faster(0.0)
        peak, first = self._memory((), self._kept), self._kept[0]
        if not paid:
            self._roll_back(self._kept, "together the kept changes are not faster")
        self._rows.add(
            [
                replace(
                    first, layer=ALL, operations=(first.operations[0]._replace(kind="together"),)
                )
            ],
            "kept" if paid else "rolled back",
            error or _why(found, paid=paid),
            comparison=found,
            peak_bytes=peak,
        )

    def _drop_what_drifts(self) -> None:
        """Train a few steps beside the stock model; roll back who leads away from its course."""
        course = Regression(self._bench, self._dress(()), self._options.regression_steps)

        def fault(some: Sequence[Candidate]) -> str:
            reasons = [each for each in self._ranks.gather(course.fault(self._dress(some))) if each]
            return reasons[0] if reasons else ""

        while self._kept and (reason := fault(self._kept)):
            self._roll_back(guilty(self._kept, lambda some: bool(fault(some))), reason)

    def _roll_back(self, candidates: Sequence[Candidate], reason: str) -> None:
        dropped = {each.key for each in candidates}
        self._kept = tuple(each for each in self._kept if each.key not in dropped)
        self._rows.change(candidates, "rolled back", reason)


class _Clock:
    """Takes times, and keeps the first error instead of raising it: other ranks go on."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.error = ""

    def of(self, dress: Dress) -> Callable[[], float]:
        def seconds() -> float:
            try:
                return self._bench.seconds(dress)
            except Exception as error:  # noqa: BLE001 - whatever a provider's function raises
                told = f"{type(error).__name__}: {error}".partition("\n")[0]
                self.error = self.error or f"the step raised {told}"
                return float("inf")

        return seconds


def _why(found: Comparison, *, paid: bool) -> str:
    change = f"{abs(1 - found.ratio):.1%} {'less' if found.ratio < 1 else 'more'} time"
    sure = f"99 % interval of the ratio {found.low:.3f} to {found.high:.3f}"
    return f"{change} ({sure}, {found.pairs} pairs)" + ("" if paid else ": not shown to pay")
