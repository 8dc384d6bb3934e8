"""Norms on board of the transfer and off again, and how norms unite on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradwatch.norms import NormGroup
    from gradwatch.readings import FloatArray, IntArray
    from gradwatch.transfer import Transfer


def united_norms(norms: FloatArray, place: IntArray, count: int) -> FloatArray:
    """Unite norms that fall into the same place: root of summed squares, without overflow.

    Args:
        norms: (N,) norms.
        place: (N,) where each belongs.
        count: Number of places.
    """
    finite = norms[np.isfinite(norms)]
    scale = float(finite.max(initial=0.0)) or 1.0
    return scale * np.sqrt(np.bincount(place, weights=(norms / scale) ** 2, minlength=count))


def total_norm(norms: FloatArray) -> float:
    """Give the norm over all tensors of which the norms are given; NaN entries are left out."""
    known = norms[~np.isnan(norms)]
    return float(united_norms(known, np.zeros(len(known), dtype=np.int64), 1)[0])


def board(transfer: Transfer, name: str, groups: Sequence[NormGroup]) -> None:
    """Put groups of norms on board under one name."""
    for number, group in enumerate(groups):
        transfer.add(f"{name}/{number}", group.values)


def collect(
    values: Mapping[str, FloatArray], name: str, groups: Sequence[NormGroup], count: int
) -> FloatArray:
    """Take groups of norms off board, back in the order of the tensors.

    Args:
        values: What the transfer brought.
        name: Name they were boarded under.
        groups: The groups that were boarded.
        count: Number of tensors.
    """
    result = np.full(count, np.nan)
    for number, group in enumerate(groups):
        result[group.places] = values[f"{name}/{number}"]
    return result
