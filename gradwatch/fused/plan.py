"""What is to be tried, in which order, alike on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from gradwatch.fused.candidates import Refusal, find
from gradwatch.fused.observe import Seen
from gradwatch.fused.operation import Candidate
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.providers import resolve
from gradwatch.fused.rows import Rows
from gradwatch.ranks import Ranks
from gradwatch.roofline.verdicts import LayerVerdict

__all__ = ["Plan"]

# A fused layer moves fewer bytes in fewer kernels; arithmetic it does not save.
HOPELESS = "compute-bound"


class Plan:
    """Choose what is worth a trial.

    Args:
        options: When fused layers are tried.
        ranks: The processes that train together.
        rows: Is told what is refused.
    """

    def __init__(self, options: FusedBackwardOptions, ranks: Ranks, rows: Rows) -> None:
        """Keep what is chosen by."""
        self._options, self._ranks, self._rows = options, ranks, rows
        self._verdicts: Mapping[str, LayerVerdict] = {}

    def groups(
        self, model: nn.Module, seen: Seen, diagnose: Callable[[], Mapping[str, LayerVerdict]]
    ) -> list[list[Candidate]]:
        """Give the candidates that are tried together: one kind of change, one provider.

        Rank 0's order holds; what another rank does not find is left out.

        Args:
            model: The model.
            seen: What a step of it showed.
            diagnose: Says what bounds each layer, by name; asked only where something can be
                tried. Without its answer only sizes tell.
        """
        found = find(model, seen, resolve(self._options.providers))
        self._verdicts = diagnose() if any(self._ranks.gather(bool(found.candidates))) else {}
        reasons = {each.key: self._reason_against(each) for each in found.candidates}
        against = [Refusal(*key, reason) for key, reason in reasons.items() if reason]
        self._rows.refuse([*found.refusals, *against])
        wanted = [each for each in found.candidates if not reasons[each.key]]
        plans = self._ranks.gather([each.key for each in wanted])
        common = set(plans[0]).intersection(*plans)
        own = {each.key: each for each in wanted}
        groups: dict[tuple[str, str], list[Candidate]] = {}
        for key in plans[0]:
            if key in common:
                groups.setdefault(key[1:], []).append(own[key])
        return list(groups.values())

    def advise(self, groups: Sequence[Sequence[Candidate]]) -> None:
        """Say of each group that it is worth a trial, and what is expected of it.

        Args:
            groups: The groups.
        """
        for group in groups:
            gain = sum(own.gain_share for each in group for own in self._verdicts_of(each))
            expected = f", up to {gain:.1%} of the step" if gain > 0 else ""
            self._rows.add(group, "advised", f"can be tried with mode='auto'{expected}")

    def _reason_against(self, candidate: Candidate) -> str:
        if self._options.mode == "force":
            return ""
        known = self._verdicts_of(candidate)
        if known and all(each.kind == HOPELESS for each in known):
            return f"{known[0].kind}: {known[0].reason}"
        if candidate.elements < self._options.min_elements:
            return f"its inputs are small: {candidate.elements:,} elements, under min_elements"
        return ""

    def _verdicts_of(self, candidate: Candidate) -> list[LayerVerdict]:
        inside = [candidate.layer, *candidate.skipped]
        return [self._verdicts[name] for name in inside if name in self._verdicts]
