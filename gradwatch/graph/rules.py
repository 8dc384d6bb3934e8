"""What a walked graph means: pure functions of plain values, one rule each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

from gradwatch.findings import LOSS, ROOT, Evidence, Finding
from gradwatch.graph.operations import SATURATING
from gradwatch.graph.walk import Graph
from gradwatch.graph.words import CARRIED, chain

# A gradient that is multiplied by less than this at best does not train what is behind it.
HOPELESS = 1e-3
MOST_NAMES = 8
GROWING_FROM = 3
# A gate or an attention has one or two saturating functions, and is no matter.
SHORTEST_RUN = 3


def judge_saturation(graph: Graph, least: int, step: int) -> Finding | None:
    """Tell a parameter that no gradient reaches but through a long run of saturating functions.

    A shortcut round them (a residual connection, a gate's other factor) or a normalisation
    between them ends a run: what is told is the easiest way, at the parameter it is longest for.

    Args:
        graph: The graph.
        least: Saturating functions in a row that are told.
        step: Optimizer step.
    """
    ends = [(graph.nodes[index].saturating, index) for index in graph.reached.values()]
    # Of several parameters behind one run, the farthest from the loss.
    longest = max(ends)[1] if ends else -1
    if longest < 0 or graph.stopped or graph.nodes[longest].saturating < least:
        return None
    return _saturated(graph, longest, step)


def explain_fading(graph: Graph, layer: str, step: int) -> Finding | None:
    """Say of a layer whose gradient fades what run of saturating functions it comes through.

    Args:
        graph: The graph.
        layer: Name of the layer.
        step: Optimizer step.

    Returns:
        What `judge_saturation` would tell of it; None where fewer than three are on its way.
    """
    parent = "" if layer == ROOT else layer
    own = [i for name, i in graph.reached.items() if name.rpartition(".")[0] == parent]
    farthest = max(own, key=lambda index: graph.nodes[index].saturating, default=-1)
    if farthest < 0 or graph.nodes[farthest].saturating < SHORTEST_RUN:
        return None
    return _saturated(graph, farthest, step)


def _saturated(graph: Graph, parameter: int, step: int) -> Finding:
    name = graph.nodes[parameter].layer
    run = [graph.nodes[index] for index in _run(graph, parameter)]
    bound = prod(SATURATING[node.operation] for node in run)
    stations = [LOSS, *(f"{node.layer} ({node.operation})" for node in run), name]
    return Finding(
        rule="saturating_chain",
        layer=name.rpartition(".")[0] or name,
        severity="warning" if bound < HOPELESS else "info",
        step=step,
        summary=f"its gradient comes through {len(run)} saturating functions in a row",
        evidence={
            "functions": _counted([node.operation for node in run]),
            "product_of_largest_derivatives": bound,
            "chain": chain(stations),
        },
        cause="each saturating function multiplies the gradient by its derivative, 1/4 at most "
        "for a sigmoid, and nothing leads round them",
        remedy="use residual connections, a non-saturating activation (ReLU, GELU) or a "
        "normalisation layer between them",
    )


def _run(graph: Graph, parameter: int) -> list[int]:
    """Give the saturating nodes of a parameter's run, those nearest the loss first."""
    count = graph.nodes[parameter].saturating
    way = graph.way(parameter, easiest=True)
    return [i for i in way if graph.nodes[i].operation in SATURATING][-count:]


def judge_recurrence(earlier: Sequence[int], joint: str, nodes: int, step: int) -> Finding | None:
    """Tell a graph that holds more of past steps with each step.

    Args:
        earlier: Nodes from before the step's forward, of the first steps in order.
        joint: Layer at which the last graph goes over into that of a step before.
        nodes: Nodes of the last graph.
        step: Optimizer step.
    """
    grows = all(after > before for before, after in pairwise(earlier))
    if len(earlier) < GROWING_FROM or earlier[0] or not grows:
        return None
    return Finding(
        rule="graph_grows",
        layer=joint or LOSS,
        severity="warning",
        step=step,
        summary="the graph goes back into that of the steps before and grows with each step",
        evidence={
            "nodes": nodes,
            "nodes_of_earlier_steps": ", ".join(str(count) for count in earlier),
            "chain": chain([LOSS, joint, "the state of the step before"]),
        },
        cause=CARRIED,
        remedy="detach() the state where the step takes it over",
    )


class Cut(NamedTuple):
    """Parameters of layers that ran, which no gradient reaches.

    Attributes:
        parameters: Their names.
        layers: Layers none of whose parameters is reached, in execution order.
        inside: Module whose input needed a gradient and whose output did not; may be empty.
        behind: Layer that ran next and is reached; ``<loss>`` where there is none.
    """

    parameters: tuple[str, ...]
    layers: tuple[str, ...]
    inside: str = ""
    behind: str = LOSS

    @property
    def place(self) -> str:
        """The last module before the cut."""
        last = self.layers[-1] if self.layers else self.parameters[-1].rpartition(".")[0]
        return self.inside or last


def find_cut(
    unreached: Mapping[str, str],
    reached: Collection[str],
    order: Sequence[str],
    cuts: Sequence[str],
) -> Cut | None:
    """Find where the way to some parameters was cut.

    Args:
        unreached: Parameter → its layer, for those that need a gradient and get none.
        reached: Layers with a parameter that gets one.
        order: Modules that ran, in execution order.
        cuts: Modules that took a gradient's path in and gave none out, in the order they ran.
    """
    ran = {name: place for place, name in enumerate(order)}
    own = {name: layer for name, layer in unreached.items() if layer in ran}
    if not own:
        return None
    layers = sorted(set(own.values()) - set(reached), key=ran.__getitem__)
    after = order[ran[layers[-1]] + 1 :] if layers else ()
    behind = next((name for name in after if name in reached), LOSS)
    inside = cuts[-1] if layers and cuts else ""
    return Cut(tuple(own), tuple(layers), inside, behind)


def judge_cut(cut: Cut | None, step: int, *, told: bool) -> Finding | None:
    """Tell parameters of layers that ran, which the loss does not reach.

    Args:
        cut: What is cut off.
        step: Optimizer step.
        told: Whether whole layers are told elsewhere, so that only parts of layers are here.
    """
    if cut is None or (cut.layers and told):
        return None
    evidence: dict[str, Evidence] = {
        "parameters": ", ".join(cut.parameters[:MOST_NAMES]),
        "count": len(cut.parameters),
    }
    if cut.layers:
        evidence["chain"] = chain([LOSS, cut.behind, f"cut in {cut.place}", *cut.layers[::-1]])
    return Finding(
        rule="graph_cut",
        layer=cut.place,
        severity="warning" if cut.layers else "info",
        step=step,
        summary=f"the loss does not reach {len(cut.parameters)} parameter(s) of layers that ran",
        evidence=evidence,
        cause="detach(), .data, .item(), a NumPy round trip or no_grad on the way, or the "
        "forward does not use them",
        remedy="take the cut out, use them, or set requires_grad=False if it is meant",
    )


def judge_bound(graph: Graph, step: int) -> Finding | None:
    """Say that the walk stopped before the end.

    Args:
        graph: The graph.
        step: Optimizer step.
    """
    if not graph.stopped:
        return None
    return Finding(
        rule="graph_not_walked",
        layer=LOSS,
        severity="info",
        step=step,
        summary=f"the walk stopped at its bound, {len(graph.nodes):,} nodes from the loss on; what "
        "is behind them was not looked at",
        evidence={"nodes_seen": len(graph.nodes), "nodes_of_earlier_steps": graph.earlier},
        cause="a very deep model, a loop of very many small operations, or a graph that grows",
        remedy="nothing where that is meant; GraphOptions(most_nodes=...) walks further, to 20,000",
    )


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{name} {names.count(name)}" for name in dict.fromkeys(names))
