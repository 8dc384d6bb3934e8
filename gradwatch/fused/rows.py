"""What a trial came to, row by row, and the table of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gradwatch.fused.bounds import Diagnosis
from gradwatch.fused.candidates import Refusal
from gradwatch.fused.operation import Candidate
from gradwatch.fused.parity import Parity
from gradwatch.fused.timing import Comparison
from gradwatch.parts import unheard
from gradwatch.tables import Cell, Table
from gradwatch.words import counted

__all__ = ["TOGETHER", "Outcome", "Rows", "TrialRow", "trial_table"]

Outcome = Literal["kept", "rolled back", "rejected", "refused", "advised", "replaced", "not tried"]

TRIED: frozenset[Outcome] = frozenset({"kept", "rolled back", "rejected", "replaced"})
# What a narrow terminal cuts off stands on the right.
COLUMNS = (
    "layer", "layers", "change", "provider", "verdict", "reason", "after / before", "low", "high",
    "before (ms)", "after (ms)", "error", "stock error", "peak memory (MiB)", "bound by",
)  # fmt: skip
MIB = 1 << 20
NUMBERS = re.compile(r"[0-9.,+-]+(e[+-][0-9]+)?")
ALL = "all kept changes"
TOGETHER = "together"
CHANNELS_LAST = "channels_last"


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One change that was tried, or looked at.

    Attributes:
        layers: Names of the layers it concerns.
        kind: What is replaced.
        provider: Who offers the replacement.
        verdict: What became of it.
        reason: Why, in one sentence.
        parity: Its error beside the stock layers', where it was run.
        comparison: Time of forward and backward without it and with it, where it was taken.
        peak_bytes: Change of the peak of allocated memory; None where nobody counts it.
        bound: What bounds the layers, as a profile said; empty where none was asked.
    """

    layers: tuple[str, ...]
    kind: str
    provider: str
    verdict: Outcome
    reason: str
    parity: Parity | None = None
    comparison: Comparison | None = None
    peak_bytes: int | None = None
    bound: str = ""

    def __str__(self) -> str:
        """Give what is said as soon as it is decided."""
        layers = "" if self.kind == TOGETHER else ", " + counted(len(self.layers), "layer")
        return f"{self.kind} ({self.provider}{layers}): {self.verdict}, {self.reason}"

    def cells(self) -> tuple[Cell, ...]:
        """Give the row as it stands in the table."""
        first = self.layers[0] if self.layers else ""
        more = f"{first} and {len(self.layers) - 1} more" if len(self.layers) > 1 else first
        errors = (None, None) if self.parity is None else self.parity[:2]
        return (
            more,
            len(self.layers),
            self.kind,
            self.provider,
            self.verdict,
            self.reason,
            *_times(self.comparison),
            *(None if each is None or math.isnan(each) else each for each in errors),
            None if self.peak_bytes is None else self.peak_bytes / MIB,
            self.bound or None,
        )


def _times(found: Comparison | None) -> tuple[Cell, ...]:
    if found is None:
        return (None,) * 5
    milliseconds = (found.before_seconds * 1e3, found.after_seconds * 1e3)
    return (found.ratio, found.low, found.high, *milliseconds)


class Rows:
    """The rows of a trial, while it runs.

    Args:
        say: Is told of each change as it is decided: training waits for a trial.

    Attributes:
        rows: In the order they were tried.
        diagnosis: What bounds the layers, once a profile was taken.
    """

    def __init__(self, say: Callable[[str], object] = unheard) -> None:
        """Begin with none."""
        self.rows: list[TrialRow] = []
        self._say = say
        self.diagnosis = Diagnosis()

    def add(
        self,
        group: Sequence[Candidate],
        verdict: Outcome,
        reason: str,
        **facts: Any,
    ) -> None:
        """Add what became of candidates of one kind.

        Args:
            group: The candidates.
            verdict: What became of them.
            reason: Why.
            **facts: What else is known.
        """
        layers = tuple(each.layer for each in group)
        inside = dict.fromkeys(name for each in group for name in (each.layer, *each.skipped))
        self._decide(
            TrialRow(
                layers=layers,
                kind=group[0].kind,
                provider=group[0].provider,
                verdict=verdict,
                reason=reason,
                bound=self.diagnosis.say(inside),
                **facts,
            )
        )

    def _decide(self, row: TrialRow) -> None:
        self.rows.append(row)
        if row.verdict in TRIED:
            self._say(str(row))

    def refuse(self, refusals: Sequence[Refusal]) -> None:
        """Add one row of all places refused for one reason."""
        together: dict[tuple[str, str, str], list[str]] = {}
        for each in refusals:
            together.setdefault((each.kind, each.provider, each.reason), []).append(each.layer)
        self.rows += [
            TrialRow(
                layers=tuple(layers),
                kind=kind,
                provider=provider,
                verdict="refused",
                reason=reason,
                bound=self.diagnosis.say(layers),
            )
            for (kind, provider, reason), layers in together.items()
        ]

    def reject(self, reasons: Mapping[str, Sequence[Candidate]]) -> None:
        """Add the candidates that do not agree: one row for those whose reasons differ in numbers.

        Args:
            reasons: Reason → candidates.
        """
        alike: dict[str, tuple[str, list[Candidate]]] = {}
        for reason, candidates in reasons.items():
            known = alike.setdefault(NUMBERS.sub("", reason), (reason, []))
            known[1].extend(candidates)
        for reason, candidates in alike.values():
            self.add(candidates, "rejected", reason)

    def add_layout(
        self,
        layers: tuple[str, ...],
        verdict: Outcome,
        reason: str,
        **facts: Any,
    ) -> None:
        """Add what became of channels_last.

        Args:
            layers: The convolutions.
            verdict: What became of it.
            reason: Why.
            **facts: What else is known.
        """
        self._decide(
            TrialRow(
                layers=layers,
                kind=CHANNELS_LAST,
                provider="torch",
                verdict=verdict,
                reason=reason,
                bound=self.diagnosis.say(layers),
                **facts,
            )
        )

    def add_together(self, verdict: Outcome, reason: str, **facts: Any) -> None:
        """Add what became of all kept changes together.

        Args:
            verdict: What became of them.
            reason: Why.
            **facts: What else is known.
        """
        kept = {row.provider for row in self.rows if row.verdict == "kept"}
        if verdict == "rolled back":
            self.rows = [_rolled_back(row) for row in self.rows]
        self._decide(
            TrialRow(
                layers=(ALL,),
                kind=TOGETHER,
                provider=", ".join(sorted(kept)),
                verdict=verdict,
                reason=reason,
                **facts,
            )
        )

    def change(self, candidates: Sequence[Candidate], verdict: Outcome, reason: str) -> None:
        """Say of candidates that were kept that they are no longer.

        Args:
            candidates: Those.
            verdict: What became of them.
            reason: Why.
        """
        gone = {each.key for each in candidates}
        before, self.rows = self.rows, []
        for row in before:
            own = tuple(n for n in row.layers if (n, row.kind, row.provider) in gone)
            if row.verdict != "kept" or not own:
                self.rows.append(row)
                continue
            rest = tuple(name for name in row.layers if name not in own)
            if rest:
                self.rows.append(replace(row, layers=rest))
            self._decide(replace(row, layers=own, verdict=verdict, reason=reason))


def _rolled_back(row: TrialRow) -> TrialRow:
    if row.verdict != "kept":
        return row
    return replace(row, verdict="rolled back", reason="together the kept changes are not faster")


def trial_table(rows: Sequence[TrialRow], step: int) -> Table:
    """Make the table of trials.

    Args:
        rows: What was tried.
        step: Optimizer step it was tried at.
    """
    kept = sum(len(r.layers) for r in rows if r.verdict == "kept" and r.kind != TOGETHER)
    advised = sum(row.verdict == "advised" for row in rows)
    told = (
        f"{counted(advised, 'change')} worth a trial"
        if advised
        else f"{counted(kept, 'layer')} swapped"
    )
    return Table(
        name="trials",
        title=f"Fused layers tried at step {step}: {told}",
        step=step,
        columns=COLUMNS,
        rows=tuple(row.cells() for row in rows),
    )
