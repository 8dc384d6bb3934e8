"""What is to be tried, in which order, alike on every rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import nn

from gradwatch.fused.bounds import Diagnosis
from gradwatch.fused.called import out_of_reach
from gradwatch.fused.candidates import Found, Refusal, find
from gradwatch.fused.nesting import depths
from gradwatch.fused.observe import Seen
from gradwatch.fused.operation import Candidate, Key
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.providers import resolve
from gradwatch.fused.rows import Rows
from gradwatch.fused.scripted import scripted_parts
from gradwatch.ranks import Ranks

__all__ = ["Plan"]

# A fused layer moves fewer bytes in fewer kernels; arithmetic it does not save.
HOPELESS = "compute-bound"
TRIED = "can be tried with mode='auto'"
GONE = "kept in the run that was resumed, and not found in this one"
ABSENT = "kept in the run that was resumed; its provider is not among this one's providers=(...)"


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

    def groups(
        self, model: nn.Module, seen: Seen, diagnose: Callable[[], Diagnosis]
    ) -> list[list[Candidate]]:
        """Give the candidates that are tried together: one kind of change, one provider.

        Args:
            model: The model.
            seen: What a step of it showed.
            diagnose: Says what bounds each layer; asked only where something can be tried.
                Without its answer only sizes tell.
        """
        found = self._found(model, seen)
        if any(self._ranks.gather(bool(found.candidates))):
            self._rows.diagnosis = diagnose()
        reasons = {each.key: self._reason_against(each) for each in found.candidates}
        against = [Refusal(*key, reason) for key, reason in reasons.items() if reason]
        self._rows.refuse([*found.refusals, *against])
        return self._agreed([each for each in found.candidates if not reasons[each.key]])

    def again(self, model: nn.Module, seen: Seen, kept: Collection[Key]) -> list[list[Candidate]]:
        """Give what an earlier run kept, whatever is thought of its size and speed now.

        Args:
            model: The model.
            seen: What a step of it showed.
            kept: Keys of what was kept; of one that is not there any more it is told why.
        """
        found = self._found(model, seen)
        refused = {each[:3]: each for each in found.refusals}
        there = {each.key for each in found.candidates}
        offering = {each.name for each in resolve(self._options.providers)}
        gone = [
            refused.get(key, Refusal(*key, GONE if key[2] in offering else ABSENT))
            for key in sorted(kept)
            if key not in there
        ]
        self._rows.refuse(gone)
        return self._agreed([each for each in found.candidates if each.key in kept])

    def _found(self, model: nn.Module, seen: Seen) -> Found:
        providers, least = resolve(self._options.providers), self._options.min_elements
        found = find(model, seen, providers)
        found.refusals.extend(scripted_parts(model))
        told: list[Candidate | Refusal] = [*found.candidates, *found.refusals]
        found.refusals.extend(out_of_reach(seen.losses, model, told, providers, least))
        return found

    def _agreed(self, wanted: Sequence[Candidate]) -> list[list[Candidate]]:
        """Give the groups; rank 0's order holds, and what another does not find is left out."""
        plans = self._ranks.gather(depths(wanted))
        common = set(plans[0]).intersection(*plans)
        own = {each.key: each for each in wanted}
        groups: dict[tuple[int, str, str], list[Candidate]] = {}
        for key, depth in sorted(plans[0].items(), key=lambda plan: plan[1]):
            if key in common:
                groups.setdefault((depth, *key[1:]), []).append(own[key])
        return list(groups.values())

    def advise(self, groups: Sequence[Sequence[Candidate]]) -> None:
        """Say of each group that it is worth a trial, and what is expected of it.

        Args:
            groups: The groups.
        """
        for group in groups:
            known = self._rows.diagnosis.of(name for each in group for name in _inside(each))
            gain = sum(own.gain_share for own in known)
            expected = f", up to {gain:.1%} of the step" if gain > 0 else ""
            hopeless = "; the profile foretells no gain" if known and gain <= 0 else ""
            self._rows.add(group, "advised", f"{TRIED}{expected}{hopeless}")

    def advise_layout(self, layers: tuple[str, ...], reason: str) -> None:
        """Say that channels_last is worth a trial, or why it cannot be tried.

        Args:
            layers: The convolutions that are not laid out so.
            reason: Why it cannot be tried; empty where it can.
        """
        if reason:
            self._rows.add_layout(layers, "refused", reason)
            return
        share = self._rows.diagnosis.share(layers)
        told = f"; these convolutions take {share:.1%} of the step" if share > 0 else ""
        self._rows.add_layout(layers, "advised", f"{TRIED}{told}")

    def _reason_against(self, candidate: Candidate) -> str:
        if self._options.mode == "force":
            return ""
        known = self._rows.diagnosis.of(_inside(candidate))
        if known and all(each.kind == HOPELESS for each in known):
            return f"{known[0].kind}: {known[0].reason}"
        if candidate.elements < self._options.min_elements:
            return f"its inputs are small: {candidate.elements:,} elements, under min_elements"
        return ""


def _inside(candidate: Candidate) -> tuple[str, ...]:
    return candidate.layer, *candidate.skipped
