"""Which candidates lie inside others: what holds is tried before what is held."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gradwatch.fused.operation import Candidate

__all__ = ["depths"]


def depths(candidates: Sequence[Candidate]) -> dict[tuple[str, str, str], int]:
    """Say how deep each candidate lies inside others.

    A block that is rewritten through its children does not call them any more: if it is kept, what
    was found in them is not tried; if not, they get their turn. Single modules come last.

    Args:
        candidates: All that were found, of any provider.

    Returns:
        Key of a candidate → number of blocks whose rewritten forward leaves it out.
    """
    left_out: dict[nn.Module, set[nn.Module]] = {}
    for each in candidates:
        if not _single(each):
            left_out.setdefault(each.module, set()).update(each.skipped.values())
    return {
        each.key: len(candidates)
        if _single(each)
        else sum(each.module in inner for inner in left_out.values())
        for each in candidates
    }


def _single(candidate: Candidate) -> bool:
    return all(each.members == ("",) for each in candidate.operations)
