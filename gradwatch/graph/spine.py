"""The graph in short: its longest way from the loss to the first layer, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from gradwatch.graph.operations import PARAMETER, SATURATING
from gradwatch.graph.rules import SHORTEST_RUN, Cut
from gradwatch.graph.walk import Graph, Node
from gradwatch.tables import Table

COLUMNS = ("depth", "layer", "operation", "mark", "run", "in_a_row")
MARKS = ("cut", "in-place", "saturating", "")
MOST_OPERATIONS = 4
# Operations that move nothing but a view: they fill a row and say nothing.
SILENT = frozenset(
    {"t", "view", "unsafe_view", "reshape_alias", "transpose", "permute", "unsqueeze", "squeeze",
     "expand", "alias", "to_copy", PARAMETER}
)  # fmt: skip


class Station(NamedTuple):
    """A stretch of the way that is one row of the table.

    Attributes:
        depth: Operations between the loss and its first node.
        first: Layer it begins in.
        last: Layer it ends in.
        operations: Operations in it, the loss's side first.
        mark: The gravest mark in it.
        run: Number of the saturating run it belongs to, from 1; 0 if to none.
        in_a_row: Saturating functions in that run.
    """

    depth: int
    first: str
    last: str
    operations: tuple[str, ...]
    mark: str
    run: int = 0
    in_a_row: int = 0


def spine(graph: Graph, cut: Cut | None, *, rows: int, step: int) -> Table:
    """Show the longest way from the loss to the first layer, a row for each layer on it.

    Where there are too many rows, neighbours of one parent module are put together, then
    neighbours.

    Args:
        graph: The graph.
        cut: Where it is cut, if it is.
        rows: Most rows.
        step: Optimizer step.

    Returns:
        A table named ``"graph"`` with the columns ``"depth"``, ``"layer"``, ``"operation"``,
        ``"mark"``: empty, ``"saturating"`` (three and more in a row, with no way round
        them), ``"in-place"`` or ``"cut"``; and for rows of a saturating run its number
        (``"run"``) and how many functions it has (``"in_a_row"``).
    """
    way = _stations(graph)
    ends = _cut_rows(way, cut)
    stations = _fitted(way, rows - len(ends))
    bound = ", as far as it was walked" if graph.stopped else ""
    return Table(
        name="graph",
        title=f"The longest way from the loss to the first layer, of {len(graph.nodes):,} "
        f"nodes{bound}",
        step=step,
        columns=COLUMNS,
        rows=tuple(
            (
                each.depth,
                _layer(each),
                _words(each.operations),
                each.mark,
                each.run or None,
                each.in_a_row or None,
            )
            for each in (*stations, *ends)
        ),
    )


def _stations(graph: Graph) -> list[Station]:
    edited = {(edit.layer, edit.operation) for edit in graph.edits}
    deepest = max(range(len(graph.nodes)), key=lambda i: graph.nodes[i].depth, default=-1)
    nodes = [graph.nodes[index] for index in graph.way(deepest)]
    found = []
    for node, (run, in_a_row) in zip(nodes, _runs_of(nodes), strict=True):
        mark = "saturating" if run else ""
        mark = "in-place" if (node.layer, node.operation) in edited else mark
        shown = () if node.operation in SILENT else (node.operation,)
        if shown or mark:
            found.append(Station(node.depth, node.layer, node.layer, shown, mark, run, in_a_row))
    return [_united(group) for _, group in groupby(found, key=lambda each: each.first)]


def _runs_of(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Give of each node the number and the length of the run of saturating ones it belongs to.

    Shorter ones than three, and nodes in none, have 0 and 0.
    """
    runs, number, length, last = [], 0, 0, 0
    # From the far end, where each run is at its full length.
    for node in reversed(nodes):
        saturates = node.operation in SATURATING
        if saturates:
            goes_on = 0 < node.saturating < last
            number += not goes_on
            length = length if goes_on else node.saturating
            last = node.saturating
        runs.append((number, length) if saturates and length >= SHORTEST_RUN else (0, 0))
    return runs[::-1]


def _united(group: Iterable[Station]) -> Station:
    every = list(group)
    operations = tuple(name for each in every for name in each.operations)
    mark = min((each.mark for each in every), key=MARKS.index)
    run, in_a_row = next(((each.run, each.in_a_row) for each in every if each.run), (0, 0))
    return Station(every[0].depth, every[0].first, every[-1].last, operations, mark, run, in_a_row)


def _fitted(stations: list[Station], rows: int) -> list[Station]:
    """Put neighbours together until the rows suffice."""
    deepest = max((each.first.count(".") for each in stations), default=0)
    for level in range(deepest, 0, -1):
        if len(stations) <= rows:
            return stations
        cut_short = [
            each._replace(first=_outer(each.first, level), last=_outer(each.last, level))
            for each in stations
        ]
        stations = [_united(group) for _, group in groupby(cut_short, key=lambda each: each.first)]
    head, rest = stations[:1], stations[1:]
    size = max(1, -(-len(rest) // (rows - 1)))
    return [*head, *(_united(rest[start : start + size]) for start in range(0, len(rest), size))]


def _outer(name: str, level: int) -> str:
    return ".".join(name.split(".")[:level])


def _cut_rows(way: list[Station], cut: Cut | None) -> list[Station]:
    if cut is None or not cut.layers:
        return []
    depth = way[-1].depth + 1 if way else 0
    place = Station(depth, cut.place, cut.place, ("the graph is cut",), "cut")
    away = f"{len(cut.layers)} layer(s) not reached"
    return [place, Station(depth, cut.layers[-1], cut.layers[0], (away,), "")]


def _layer(station: Station) -> str:
    if station.first == station.last:
        return station.first
    return f"{station.first} … {station.last}"


def _words(operations: Sequence[str]) -> str:
    counts = Counter(operations)
    words = [name if count == 1 else f"{name} ×{count}" for name, count in counts.items()]
    more = [f"{len(words) - MOST_OPERATIONS} more"] if len(words) > MOST_OPERATIONS + 1 else []
    return ", ".join([*words[: MOST_OPERATIONS + (not more)], *more])
