"""Kept tensors that were written over or let go since: told before PyTorch raises on them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from gradwatch.graph.operations import operation_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

_KEPT = "_raw_saved_"
_CUSTOM = "tensors"
SPENT = "backward through the graph a second time"
_VERSIONS = re.compile(
    r"inplace operation: \[\S+ \[?(?P<shape>[\d, ]*)\]?\]"
    r"(?:, which is output \d+ of (?P<maker>\w+))?.*"
    r"version (?P<now>\d+); expected version (?P<then>\d+)",
    re.DOTALL,
)


class Edit(NamedTuple):
    """One kept tensor that the backward will not find as it was.

    Attributes:
        layer: Layer whose forward kept it.
        operation: Operation that needs it.
        kept: What it is to that operation: ``"self"``, ``"result"``, ``"weight"``, ...
        shape: Its sizes, such as ``"5, 8"``.
        maker: Operation that made it; empty for a leaf.
        writes: Times it was written over since; 0 where an earlier backward has let it go.
    """

    layer: str
    operation: str
    kept: str
    shape: str
    maker: str
    writes: int


@lru_cache(maxsize=1024)
def kept_names(kind: Hashable) -> tuple[str, ...]:
    """Name what nodes of a class keep for their backward.

    Args:
        kind: Class of the node.
    """
    return tuple(name.removeprefix(_KEPT) for name in dir(kind) if name.startswith(_KEPT))


def edits_in(node: Any, layer: str, operation: str) -> Iterator[Edit]:  # noqa: ANN401 - no public type
    """Find kept tensors that were written over or let go, by asking for them as the backward will.

    Where hooks pack and unpack what is kept (checkpointing, offloading), asking would run
    them, so that such a tensor is not looked at; nor is any where PyTorch cannot tell (older
    releases, whose kept tensors have no ``unpack_hook``).

    Args:
        node: A node of the graph.
        layer: Layer it was made in.
        operation: Its operation.

    Yields:
        Each edit.
    """
    for kept, name in plainly_kept(node):
        complaint = _complaint(node, name)
        found = _VERSIONS.search(complaint)
        if SPENT in complaint:
            yield Edit(layer, operation, kept, "", "", 0)
        elif found:
            maker = operation_of(found["maker"] or "")
            writes = int(found["now"]) - int(found["then"])
            yield Edit(layer, operation, kept, found["shape"], maker, writes)


def plainly_kept(node: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - as above
    """Name what a node keeps as it is: not packed by hooks, which asking for it would run.

    Args:
        node: A node of the graph.

    Yields:
        What it is to the operation, and the attribute that gives it.
    """
    kind: Any = type(node)
    for kept in kept_names(kind):
        if _is_plain(getattr(node, _KEPT + kept, None)):
            yield kept, "saved_tensors" if kept == _CUSTOM else f"_saved_{kept}"


def _is_plain(raw: object) -> bool:
    """Tell whether a kept tensor, or each of several, is kept as it is."""
    every = raw if isinstance(raw, list | tuple) else [raw]
    return bool(every) and all(getattr(each, "unpack_hook", raw) is None for each in every)


def _complaint(node: object, name: str) -> str:
    try:
        getattr(node, name)
    except RuntimeError as error:
        return str(error)
    return ""
