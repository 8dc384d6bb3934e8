"""Put one call in the place of each chain of a block's graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence

from torch import fx

from gradwatch.fused.chains import Chain

__all__ = ["splice"]


def splice(graph: fx.Graph, chains: Sequence[Chain]) -> tuple[fx.Graph, list[fx.Node]]:
    """Copy a graph with each chain as one call.

    Args:
        graph: What the block's forward does.
        chains: Its chains.

    Returns:
        The copy, and the node of each chain's call; its target only keeps the place.
    """
    copied, twin = fx.Graph(), dict[fx.Node, fx.Node]()
    output = copied.graph_copy(graph, twin)
    copied.output(output)
    calls = [_splice_one(copied, chain, twin) for chain in chains]
    copied.lint()
    return copied, calls


def _splice_one(graph: fx.Graph, chain: Chain, twin: dict[fx.Node, fx.Node]) -> fx.Node:
    last = twin[chain.last]
    total = None if chain.total is None else twin[chain.total]
    # The sum may be read before the norm is: both come where the sum was.
    with graph.inserting_before(last if total is None else total):
        owners = [graph.get_attr(path) for path in chain.members]
        call = graph.call_function(_open_place(), (*owners, *(twin[each] for each in chain.inputs)))
        if total is None:
            results = [call]
        else:
            results = [graph.call_function(operator.getitem, (call, i)) for i in (0, 1)]
    between = [total] if total is not None else list(_between(last, chain, twin))
    last.replace_all_uses_with(results[0])
    graph.erase_node(last)
    # A later chain may begin where this one ends.
    twin[chain.last] = results[0]
    if chain.total is not None and total is not None:
        total.replace_all_uses_with(results[1])
        twin[chain.total] = results[1]
    for node in between:
        graph.erase_node(node)
    return call


def _between(last: fx.Node, chain: Chain, twin: dict[fx.Node, fx.Node]) -> Iterator[fx.Node]:
    """Give the nodes between a chain's inputs and its last node, last first."""
    stop, near = {twin[each] for each in chain.inputs}, list(last.all_input_nodes)
    while near:
        node = near.pop(0)
        if node not in stop:
            yield node
            near.extend(node.all_input_nodes)


def _open_place() -> Callable[..., None]:
    """Make what stands where a function is yet to be put, each place for itself."""

    def place(*_: object) -> None:
        pass

    return place
