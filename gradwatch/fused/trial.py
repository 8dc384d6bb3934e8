"""Try fused layers one kind at a time: prove, measure, keep or roll back.

Parity on live data first, then the time of forward and backward on the same micro-batch and random
numbers, against the model as it stands (with what was kept before). At the end all that was kept
together: time, memory, and a few steps of training beside the stock model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from gradwatch.fused.bench import Bench, Dress
from gradwatch.fused.bounds import Diagnosis
from gradwatch.fused.contest import Contest
from gradwatch.fused.diagnose import diagnose
from gradwatch.fused.layout import ChannelsLast, refuse_layout
from gradwatch.fused.observe import Seen, observe
from gradwatch.fused.operation import Candidate, Key
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.parity import Parity
from gradwatch.fused.plan import Plan
from gradwatch.fused.proof import Proof
from gradwatch.fused.regression import Regression, guilty
from gradwatch.fused.rows import Outcome, Rows, TrialRow
from gradwatch.fused.timing import Comparison
from gradwatch.fused.wardrobe import Wardrobe
from gradwatch.ranks import Ranks
from gradwatch.symptoms.signs import Fused

__all__ = ["Again", "Result", "Trial"]

LATE = "the time for the trial was up"
RESUMED = "kept in the run that was resumed, proved again"
# Where convolutions are known to take channels last as their own layout.
LAID_OUT = ("cpu", "cuda")
FOLLOWED = "kept in the run that was resumed; a few steps in it followed the stock course again"


class Again(NamedTuple):
    """What an earlier run kept.

    Attributes:
        kept: Keys of its candidates.
        channels_last: Whether its convolutions had their channels last.
    """

    kept: frozenset[Key]
    channels_last: bool


class Result(NamedTuple):
    """What a trial came to.

    Attributes:
        kept: What the model is to wear.
        rows: What was tried, in order.
        channels_last: Whether its convolutions are to be laid out with channels last.
        slower: Layers that made the step slower, with the time of their kernels by themselves.
    """

    kept: tuple[Candidate, ...]
    rows: tuple[TrialRow, ...]
    channels_last: bool = False
    slower: tuple[Fused, ...] = ()


class Trial:
    """One trial on one micro-batch; the model is left as it was found.

    Args:
        bench: The micro-batch.
        options: When fused layers are tried and kept.
        ranks: The processes that train together; all enter the trial at the same step.
        rows: Take what was tried.
    """

    def __init__(
        self, bench: Bench, options: FusedBackwardOptions, ranks: Ranks, rows: Rows | None = None
    ) -> None:
        """Begin with nothing kept."""
        self._bench, self._options, self._ranks = bench, options, ranks
        self._rows = rows or Rows()
        self._plan = Plan(options, ranks, self._rows)
        self._contest = Contest(bench, options, ranks)
        self._proof = Proof(bench, options, ranks, self._rows)
        self._slower: list[Fused] = []
        self._wardrobe, self._layout = Wardrobe(), ChannelsLast(bench.model)
        self._channels_last = False
        self._kept: tuple[Candidate, ...] = ()
        self._late = time.monotonic() + options.max_seconds

    def run(self, again: Again | None = None) -> Result:
        """Try everything.

        Args:
            again: What an earlier run on the same kind of device kept: it is proved again and put
                back on without being measured, and nothing else is tried.

        Returns:
            What to wear, and the rows of the table.
        """
        try:
            with self._bench.opened():
                if again is not None and self._options.mode != "advise":
                    self._resume(again)
                else:
                    self._begin()
        finally:
            self._stock()
        return Result(self._kept, tuple(self._rows.rows), self._channels_last, tuple(self._slower))

    def _begin(self) -> None:
        with self._seen() as seen:
            groups = self._plan.groups(self._bench.model, seen, self._diagnose)
        if self._options.mode == "advise":
            self._advise(groups)
        else:
            self._try_all(groups)

    @contextmanager
    def _seen(self) -> Iterator[Seen]:
        seen = observe(self._bench, self._wardrobe.take_off)
        try:
            yield seen
        finally:
            # The inputs of every module; a graph that recomputes may hold the hook that saw them.
            seen.visits.clear()

    def _diagnose(self) -> Diagnosis:
        """Say what bounds each layer, where that decides anything."""
        if self._options.mode == "force" or not self._options.profile:
            return Diagnosis()
        return diagnose(self._bench, self._wardrobe.take_off)

    def _advise(self, groups: Sequence[list[Candidate]]) -> None:
        self._plan.advise(groups)
        if self._lays_out and self._bench.device.type in LAID_OUT:
            self._plan.advise_layout(self._layout.layers, refuse_layout())

    def _resume(self, again: Again) -> None:
        """Prove again what was kept, first each change by itself, then all on the weights."""
        if again.channels_last and self._lays_out:
            self._lay_out(self._layout_fault() or ("kept", FOLLOWED))
        with self._seen() as seen:
            groups = self._plan.again(self._bench.model, seen, again.kept)
        for group in groups:
            proved, parity = self._proof.prove(group, self._dress(self._kept))
            if proved:
                self._kept += tuple(proved)
                self._rows.add(proved, "kept", RESUMED, parity=parity)
        self._drop_what_drifts()

    def _try_all(self, groups: Sequence[list[Candidate]]) -> None:
        self._try_layout()
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
        proved, parity = self._proof.prove(free, self._dress(self._kept))
        if not proved:
            return
        rivals = {each.module for each in proved}
        beside = tuple(each for each in self._kept if each.module not in rivals)
        self._measure(proved, parity, (*beside, *proved))

    def _dress(self, candidates: Sequence[Candidate], *, last: bool | None = None) -> Dress:
        on = self._channels_last if last is None else last

        def dress() -> None:
            self._layout.turn(on=on)
            self._wardrobe.wear(candidates)

        return dress

    def _stock(self) -> None:
        self._layout.turn(on=False)
        self._wardrobe.take_off()

    def _measure(
        self, group: Sequence[Candidate], parity: Parity, wanted: tuple[Candidate, ...]
    ) -> None:
        if self._options.mode == "force":
            self._kept = wanted
            self._rows.add(group, "kept", "forced", parity=parity)
            return
        score = self._contest.score(self._dress(self._kept), self._dress(wanted))
        if score.comparison is not None and score.comparison.slower(0.0):
            self._look_alone(group[0], score.comparison)
        if score.paid:
            lost = [each for each in self._kept if each not in wanted]
            self._rows.change(lost, "replaced", "another provider was faster")
            self._kept = wanted
        self._rows.add(group, *score.outcome, parity=parity, **score.facts)

    def _look_alone(self, candidate: Candidate, step: Comparison) -> None:
        """Keep the times of what made the step slower: were its own kernels faster?"""
        alone = self._proof.alone(candidate, self._dress(self._kept))
        if alone is not None:
            whole = (step.before_seconds, step.after_seconds)
            self._slower.append(Fused(candidate.layer, alone, whole))

    @property
    def _lays_out(self) -> bool:
        return self._options.channels_last and bool(self._layout.layers)

    def _layout_fault(self) -> tuple[Outcome, str] | None:
        """Say why channels must not come last: they cannot, or training departs from its course."""
        if reason := refuse_layout():
            return "refused", reason
        course = Regression(self._bench, self._dress(()), self._options.regression_steps)
        fault = course.fault(self._dress((), last=True))
        return ("rejected", fault) if fault else None

    def _lay_out(self, outcome: tuple[Outcome, str], **facts: Any) -> None:
        self._channels_last = outcome[0] == "kept"
        self._rows.add_layout(self._layout.layers, *outcome, **facts)

    def _try_layout(self) -> None:
        """Measure channels_last; everything else is then measured on top of it."""
        if not self._lays_out:
            return
        fault = self._layout_fault()
        if fault or self._options.mode == "force":
            self._lay_out(fault or ("kept", "forced"))
            return
        score = self._contest.score(self._dress(()), self._dress((), last=True))
        self._lay_out(score.outcome, **score.facts)

    def _settle(self) -> None:
        """Judge everything that was kept together, against the stock model."""
        self._drop_what_drifts()
        if self._options.mode == "force" or not (self._kept or self._channels_last):
            return
        score = self._contest.score(self._stock, self._dress(self._kept), gain=0.0)
        if not score.paid:
            self._kept, self._channels_last = (), False
        self._rows.add_together(*score.outcome, **score.facts)

    def _drop_what_drifts(self) -> None:
        """Train a few steps beside the stock model; roll back who leads away from its course."""
        if not self._kept:
            return
        course = Regression(self._bench, self._stock, self._options.regression_steps)

        def fault(some: Sequence[Candidate]) -> str:
            reasons = [each for each in self._ranks.gather(course.fault(self._dress(some))) if each]
            return reasons[0] if reasons else ""

        while self._kept and (reason := fault(self._kept)):
            self._roll_back(guilty(self._kept, lambda some: bool(fault(some))), reason)

    def _roll_back(self, candidates: Sequence[Candidate], reason: str) -> None:
        dropped = {each.key for each in candidates}
        self._kept = tuple(each for each in self._kept if each.key not in dropped)
        self._rows.change(candidates, "rolled back", reason)
