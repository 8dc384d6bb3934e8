"""Two ways to run a step against each other: time and memory, alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gradwatch.fused.bench import Bench, Dress
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.rows import Outcome
from gradwatch.fused.timing import Comparison, compare
from gradwatch.ranks import Ranks
from gradwatch.words import one_line

__all__ = ["Contest", "Score"]


class Score(NamedTuple):
    """How a change did against the model without it.

    Attributes:
        paid: Whether it is shown to gain what it has to.
        reason: The figures in a sentence.
        comparison: The times; None where a run failed.
        peak_bytes: Change of the peak of allocated memory; None where nobody counts it.
    """

    paid: bool
    reason: str
    comparison: Comparison | None
    peak_bytes: int | None

    @property
    def outcome(self) -> tuple[Outcome, str]:
        """What becomes of the change, and why."""
        return "kept" if self.paid else "rolled back", self.reason

    @property
    def facts(self) -> dict[str, Any]:
        """What was measured, as a row of the table takes it."""
        return {"comparison": self.comparison, "peak_bytes": self.peak_bytes}


class Contest:
    """Measures changes.

    Args:
        bench: The micro-batch; opened.
        options: How much is measured, and what has to be gained.
        ranks: The processes that measure together.
    """

    def __init__(self, bench: Bench, options: FusedBackwardOptions, ranks: Ranks) -> None:
        """Keep what is measured with."""
        self._bench, self._options, self._ranks = bench, options, ranks

    def score(self, before: Dress, after: Dress, gain: float | None = None) -> Score:
        """Measure two ways to run a step in turns.

        Args:
            before: Puts the forwards on that the step runs without the change.
            after: Puts those on that it runs with it.
            gain: Share of the time to be gained; by default that of the options.
        """
        wanted, clock = self._options.min_gain if gain is None else gain, _Clock(self._bench)
        found = compare(
            clock.of(before),
            clock.of(after),
            gain=wanted,
            pairs=self._options.pairs,
            most_pairs=self._options.most_pairs,
            gather=self._ranks.gather,
        )
        errors = [each for each in self._ranks.gather(clock.error) if each]
        if errors:
            return Score(paid=False, reason=errors[0], comparison=None, peak_bytes=None)
        paid = found.faster(wanted)
        return Score(paid, _why(found, paid=paid), found, self._memory(before, after))

    def _memory(self, before: Dress, after: Dress) -> int | None:
        without, with_it = self._bench.peak_bytes(before), self._bench.peak_bytes(after)
        return None if without is None or with_it is None else with_it - without


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
                self.error = self.error or f"the step raised {one_line(error)}"
                return float("inf")

        return seconds


def _why(found: Comparison, *, paid: bool) -> str:
    change = f"{abs(1 - found.ratio):.1%} {'less' if found.ratio < 1 else 'more'} time"
    sure = f"99 % interval of the ratio {found.low:.3f} to {found.high:.3f}"
    doubt = "" if paid or found.slower(0.0) else ": not shown to pay"
    return f"{change} ({sure}, {found.pairs} pairs){doubt}"
