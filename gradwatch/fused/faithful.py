"""A block's forward, written out, gives what it gave: looked at before anything is tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gradwatch.fused.observe import Visit
from gradwatch.fused.operation import Candidate, Function
from gradwatch.fused.runs import bare_copy, half_set
from gradwatch.fused.tracer import copied
from gradwatch.non_finite.capture import rng_preserved
from gradwatch.non_finite.rng import RandomState

__all__ = ["unfaithful"]

DIFFERS = "its forward, written out, does not give what it gives"


def unfaithful(candidate: Candidate, visit: Visit) -> str:
    """Say in what a rewritten forward that runs the stock functions differs from the block's own.

    Args:
        candidate: The block and what is to be replaced in it.
        visit: A live call of the block.

    Returns:
        What is wrong; empty where nothing is, and where the block itself never gives the same.
    """
    block = candidate.module
    rewritten = candidate.build([each.stock for each in candidate.operations])
    with rng_preserved(), torch.no_grad(), half_set(visit.half):
        random = RandomState.take()

        def run(forward: Function) -> Any:  # noqa: ANN401 - any output
            random.restore()
            given = torch.utils._pytree.tree_map_only(Tensor, copied, (visit.args, visit.kwargs))  # noqa: SLF001
            return forward(bare_copy(block), *given[0], **given[1])

        try:
            stock = run(type(block).forward)
        except Exception as error:  # noqa: BLE001 - no memory for a second run, say
            return f"its forward cannot be run again ({type(error).__name__})"
        try:
            own = run(rewritten)
        except Exception as error:  # noqa: BLE001 - it was written out wrongly
            return f"its forward, written out, raises {type(error).__name__}"
        # One that counts, or fills a cache, is another function at each call.
        reproducible = _alike(stock, own) or _alike(stock, run(type(block).forward))
    return "" if _alike(stock, own) or not reproducible else DIFFERS


def _alike(left: Any, right: Any) -> bool:  # noqa: ANN401 - any outputs
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor):
        return (left.shape, left.dtype) == (right.shape, right.dtype) and _close(left, right)
    own, others = list(_held(left)), list(_held(right))
    return len(own) == len(others) and all(
        name == other and _alike(each, twin)
        for (name, each), (other, twin) in zip(own, others, strict=True)
    )


def _close(left: Tensor, right: Tensor) -> bool:
    if not left.is_floating_point() or not left.numel():
        return torch.equal(left, right)
    peak = float(left.nan_to_num().abs().max())
    limit = torch.finfo(left.dtype).eps ** 0.5
    return torch.allclose(left, right, rtol=limit, atol=limit * peak, equal_nan=True)


def _held(value: object) -> Iterator[tuple[object, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
    elif isinstance(value, bool | int | float | str):
        yield value, None
