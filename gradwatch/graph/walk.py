"""Walk the autograd graph from its roots, once, and keep nothing of it but plain values.

Iterative, so that a long chain is no matter; bounded, so that a graph that grows with the steps
is none either. The nodes themselves are let go before this returns: a node
that is held keeps its whole graph alive.

Shapes: N nodes, in an order in which each stands behind all that use its result.
"""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from gradwatch.graph.edits import Edit, edits_in
from gradwatch.graph.operations import NORMALISING, PARAMETER, SATURATING, operation_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor, nn

EARLIER = "<an earlier step>"
_NOWHERE = 1 << 62


class Node(NamedTuple):
    """One node, as plain values.

    Attributes:
        operation: Operation it is the backward of, ``"parameter"`` for a leaf.
        layer: Layer it was made in; for a leaf the parameter's name.
        depth: Most operations between a root and it.
        above: Index of the node before it on that longest way; -1 for a root.
        saturating: Fewest saturating functions in a row that a gradient has come through
            when it leaves the node, over all ways from a root; a normalisation begins anew.
        through: Index of the node before it on that easiest way; -1 for a root.
    """

    operation: str
    layer: str
    depth: int
    above: int
    saturating: int
    through: int


class Graph(NamedTuple):
    """What a walk saw.

    Attributes:
        nodes: (N,) the nodes; empty where nothing requires a gradient.
        edits: Kept tensors that were written over or let go.
        earlier: Number of nodes that are older than this step's forward.
        joint: Layer in which the graph goes over into that of an earlier step; empty if it
            does not.
        stopped: Whether the walk stopped at its bound.
        origin: Parameter → the roots it is reached from, a bit each.
    """

    nodes: list[Node]
    edits: tuple[Edit, ...] = ()
    earlier: int = 0
    joint: str = ""
    stopped: bool = False
    origin: Mapping[str, int] = MappingProxyType({})

    @property
    def reached(self) -> dict[str, int]:
        """Parameter → index of its node, those nearest the loss first."""
        leaves = ((i, each) for i, each in enumerate(self.nodes) if each.operation == PARAMETER)
        return {each.layer: index for index, each in leaves if each.layer}

    def way(self, index: int, *, easiest: bool = False) -> list[int]:
        """Follow the graph from a node back to its root.

        Args:
            index: The node.
            easiest: Take the way with the fewest saturating functions, not the longest.

        Returns:
            Indices of nodes, the root first.
        """
        way = []
        while index >= 0:
            way.append(index)
            index = self.nodes[index].through if easiest else self.nodes[index].above
        return way[::-1]


class Surroundings(NamedTuple):
    """What a walk must know beside the graph.

    Attributes:
        parameters: Parameter → its name.
        layer_of: Gives the layer a node was made in, by its number.
        since: Number of the first node this step may have made.
        most_nodes: Nodes after which the walk stops; see `GraphOptions` for why not many more.
        look_for_edits: Whether kept tensors are looked at.
    """

    parameters: Mapping[nn.Parameter, str]
    layer_of: Callable[[int], str]
    since: int = 0
    most_nodes: int = 15_000
    look_for_edits: bool = True


def walk(roots: Iterable[Tensor], around: Surroundings) -> Graph:
    """Walk the graph behind some tensors; nothing is run, changed or waited for.

    Args:
        roots: The loss, or the tensors it will be made of.
        around: Names and bounds.

    Returns:
        The graph as plain values.

    Examples:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> loss = (weight * 3).sigmoid().sum()
        >>> seen = walk([loss], Surroundings({weight: "weight"}, lambda number: "<root>"))
        >>> [node.operation for node in seen.nodes]
        ['sum', 'sigmoid', 'mul', 'parameter']
        >>> seen.reached
        {'weight': 3}
    """
    return _Walk(around).run([root.grad_fn for root in roots if root.grad_fn is not None])


class _Walk:
    """One walk: find the nodes, then put them in order. Lives no longer than the call."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._below: dict[Any, list[Any]] = {}
        self._waiting: dict[Any, int] = {}
        self._way: dict[Any, list[int]] = {}
        self._roots: dict[Any, int] = {}
        self._origin: dict[str, int] = {}
        self._nodes: list[Node] = []
        self._edits: list[Edit] = []
        self._earlier, self._joint = 0, ""

    def run(self, roots: list[Any]) -> Graph:
        stopped = self._find(roots)
        # Depth, index above, saturating, index of the easiest way in.
        ready = deque(node for node in dict.fromkeys(roots) if not self._waiting.get(node))
        self._way = {node: [0, -1, 0, -1] for node in ready}
        for number, node in enumerate(roots):
            self._roots[node] = self._roots.get(node, 0) | 1 << number
        while ready:
            node = ready.popleft()
            self._take(node)
            for child in self._below.get(node, ()):
                self._waiting[child] -= 1
                if not self._waiting[child]:
                    ready.append(child)
        edits = tuple(self._edits)
        return Graph(self._nodes, edits, self._earlier, self._joint, stopped, self._origin)

    def _find(self, roots: list[Any]) -> bool:
        """Find nodes from the roots on, and count by how many others each is used."""
        found = dict.fromkeys(roots)
        queue = deque(found)
        while queue and len(self._below) < self._around.most_nodes:
            node = queue.popleft()
            below = [child for child, _ in node.next_functions if child is not None]
            self._below[node] = below
            for child in below:
                self._waiting[child] = self._waiting.get(child, 0) + 1
                if child not in found:
                    found[child] = None
                    queue.append(child)
        # Leaves that are left over are seen all the same: they have nothing behind them.
        return any(child is not None for node in queue for child, _ in node.next_functions)

    def _take(self, node: Any) -> None:  # noqa: ANN401 - an autograd node has no public type
        """Turn a node into plain values, and tell those below how a gradient gets there."""
        index = len(self._nodes)
        depth, above, saturating, through = self._way.pop(node)
        operation = operation_of(node.name())
        layer = self._layer(node, operation)
        if operation in SATURATING:
            saturating += 1
        elif operation in NORMALISING:
            saturating = 0
        self._nodes.append(Node(operation, layer, depth, above, saturating, through))
        if self._around.look_for_edits:
            self._edits += edits_in(node, layer, operation)
        roots = self._roots.pop(node)
        if operation == PARAMETER:
            self._origin[layer] = roots
        for child in self._below.get(node, ()):
            self._roots[child] = self._roots.get(child, 0) | roots
            self._pass_on(child, index, depth + 1, saturating)
            if layer != EARLIER and self._is_earlier(child):
                self._joint = self._joint or layer

    def _layer(self, node: Any, operation: str) -> str:  # noqa: ANN401 - as above
        if operation == PARAMETER:
            return self._around.parameters.get(node.variable, "")
        if self._is_earlier(node):
            self._earlier += 1
            return EARLIER
        return self._around.layer_of(node._sequence_nr())  # noqa: SLF001 - no public way to ask

    def _is_earlier(self, node: Any) -> bool:  # noqa: ANN401 - as above
        # A leaf's number is the largest there is.
        return bool(node._sequence_nr() < self._around.since)  # noqa: SLF001 - as above

    def _pass_on(self, child: Any, index: int, depth: int, saturating: int) -> None:  # noqa: ANN401
        known = self._way.setdefault(child, [-1, -1, _NOWHERE, -1])
        if depth > known[0]:
            known[:2] = depth, index
        if saturating < known[2]:
            known[2:] = saturating, index
