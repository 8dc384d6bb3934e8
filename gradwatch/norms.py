"""Frobenius norms of many tensors, true for every dtype and layout, without a wait.

`torch._foreach_norm` alone is not the truth: in half precision its square sums
overflow or lose digits, in float32 they overflow above 1e19 and vanish below 1e-23.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import Tensor

    from gradwatch.readings import IntArray

import numpy as np

HALVES = frozenset({torch.float16, torch.bfloat16})
PLAIN = HALVES | {torch.float32, torch.float64}
SMALL = 1024
RELIABLE = (1e-15, 1e15)


class NormGroup(NamedTuple):
    """Norms of tensors that share device and dtype.

    Attributes:
        places: (K,) positions among the tensors that were measured.
        values: (K,) norms on the device.
    """

    places: IntArray
    values: Tensor


def measurable(tensor: Tensor | None) -> bool:
    """Tell whether a gradient or weight has a norm worth telling.

    ``None``, integer, boolean, empty and uninitialised (lazy) tensors are left out.
    """
    if tensor is None or isinstance(tensor, UninitializedParameter | UninitializedBuffer):
        return False
    return tensor.numel() > 0 and (tensor.is_floating_point() or tensor.is_complex())


def as_plain(tensor: Tensor) -> Tensor:
    """Give a dense real tensor with the same Frobenius norm (of a DTensor: the local part).

    Args:
        tensor: Sparse (coalesced here, once), complex, sharded or narrow-float tensor.

    Returns:
        A dense tensor in one of float16, bfloat16, float32, float64.
    """
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor if tensor.dtype in PLAIN else tensor.float()


def nonzero_count(tensor: Tensor) -> Tensor:
    """Count the entries that are not zero: 0-d, NaN for a DTensor of which only a part is here."""
    if isinstance(tensor, DTensor):
        return torch.full((), torch.nan, device=tensor.to_local().device)
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    return torch.count_nonzero(tensor).float()


def scaled_norm(tensor: Tensor) -> Tensor:
    """Measure one tensor scaled by its maximum: right over the whole range of its dtype.

    Args:
        tensor: Dense real tensor.

    Returns:
        0-d float64 tensor (float32 where the device has no doubles); NaN or inf where
        the tensor holds them.
    """
    if tensor.numel() == 0:
        return tensor.new_zeros((), dtype=torch.float32)
    work = tensor.detach()
    work = work.float() if work.dtype in HALVES else work
    low, high = torch.aminmax(work)
    peak = torch.maximum(low.abs(), high.abs())
    usable = (peak > 0) & peak.isfinite()
    safe = torch.where(usable, peak, torch.ones_like(peak))
    norm = torch.linalg.vector_norm(work / safe)
    wide = work.device.type != "mps"
    true: Tensor = norm.double() * safe.double() if wide else norm * safe
    return true


class _Pack(NamedTuple):
    places: list[int]
    where: IntArray
    measure: Callable[[list[Tensor]], Tensor]


class NormPlan:
    """How a fixed list of tensors is measured: which go together, which need care.

    Built once for a list and used as long as the list stays the same.

    Args:
        tensors: The tensors, in the order of the positions handed back.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Sort the tensors into groups by device and dtype."""
        self._special = [
            position
            for position, tensor in enumerate(tensors)
            if isinstance(tensor, DTensor)
            or tensor.layout is not torch.strided
            or tensor.dtype not in PLAIN
        ]
        self._sharded = [p for p in self._special if isinstance(tensors[p], DTensor)]
        special = set(self._special)
        self._groups: dict[tuple[object, ...], list[int]] = {}
        for position, tensor in enumerate(tensors):
            plain = as_plain(tensor) if position in special else tensor
            alike = plain.shape if _is_small(plain) and position not in special else None
            self._groups.setdefault((plain.device, plain.dtype, alike), []).append(position)
        self._packed_for: Collection[int] | None = None
        self._packs: list[_Pack] = []

    @torch.no_grad()
    def measure(self, tensors: Sequence[Tensor], exact: Collection[int] = ()) -> list[NormGroup]:
        """Measure all tensors; nothing is waited for.

        Args:
            tensors: The tensors of the plan, in the same order.
            exact: Positions to measure scaled by their maximum.

        Returns:
            Norms by group, on their devices.
        """
        plain = list(tensors)
        for position in self._special:
            plain[position] = as_plain(plain[position])
        if exact != self._packed_for:
            self._packs = [pack for key in self._groups for pack in self._split(key, exact)]
            self._packed_for = exact
        groups = [
            NormGroup(pack.where, pack.measure([plain[place] for place in pack.places]))
            for pack in self._packs
        ]
        return [_whole_of_shards(group, tensors, self._sharded) for group in groups]

    def _split(self, key: tuple[object, ...], exact: Collection[int]) -> list[_Pack]:
        """Split a group into what is measured fast and what exactly.

        On a CPU a call costs more than the arithmetic of a small tensor, so small ones of
        one shape go into one call; an accelerator's foreach call is one kernel already.
        """
        positions = self._groups[key]
        slow = [place for place in positions if place in exact]
        fast = [place for place in positions if place not in exact]
        how = _fast if key[-1] is None else _stacked
        packs = ((slow, _exactly), (fast, how))
        return [
            _Pack(places, np.asarray(places, dtype=np.int64), measure)
            for places, measure in packs
            if places
        ]


def _is_small(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() <= SMALL


def _exactly(tensors: list[Tensor]) -> Tensor:
    return torch.stack([scaled_norm(tensor) for tensor in tensors])


def _stacked(tensors: list[Tensor]) -> Tensor:
    dtype = torch.float32 if tensors[0].dtype in HALVES else None
    rows = torch.stack(tensors).reshape(len(tensors), -1)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
    return norms


def _fast(tensors: list[Tensor]) -> Tensor:
    dtype = torch.float32 if tensors[0].dtype in HALVES else None
    return torch.stack(torch._foreach_norm(tensors, 2, dtype))


def _whole_of_shards(
    group: NormGroup, tensors: Sequence[Tensor], sharded: Collection[int]
) -> NormGroup:
    """Add up local squares over the ranks that hold shards, one all-reduce a mesh axis."""
    if not sharded:
        return group
    squares = group.values.double().square()
    axes: dict[object, list[int]] = {}
    for place, position in enumerate(group.places):
        tensor = tensors[position]
        if isinstance(tensor, DTensor):
            for axis, placement in enumerate(tensor.placements):
                if isinstance(placement, Shard):
                    axes.setdefault(tensor.device_mesh.get_group(axis), []).append(place)
    for ranks, places in axes.items():
        local = squares[places]
        torch.distributed.all_reduce(local, group=ranks)
        squares[places] = local
    return NormGroup(group.places, squares.sqrt())
