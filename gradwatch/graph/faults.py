"""What the backward is about to raise on: told before it does, with the layer and the way out."""

from __future__ import annotations

from gradwatch.findings import LOSS, Finding
from gradwatch.graph.edits import Edit
from gradwatch.graph.walk import EARLIER, Graph
from gradwatch.graph.words import CARRIED, chain


def judge_edits(graph: Graph, step: int) -> Finding | None:
    """Tell kept tensors that were written over or let go between forward and backward.

    Those of an earlier step are there because a state was not detached: that is told first.

    Args:
        graph: The graph.
        step: Optimizer step.
    """
    if not graph.edits:
        return None
    edit = graph.edits[0]
    if edit.layer == EARLIER:
        return _carried(graph, edit, step)
    return _written(graph, edit, step) if edit.writes else _spent(graph, edit, step)


def _carried(graph: Graph, edit: Edit, step: int) -> Finding:
    what = "written over by the optimizer" if edit.writes else "let go"
    return Finding(
        rule="graph_carried_over",
        layer=graph.joint or LOSS,
        severity="error",
        step=step,
        summary=f"the graph goes back into that of an earlier step, whose tensors were {what}",
        evidence={
            "nodes": len(graph.nodes),
            "nodes_of_earlier_steps": graph.earlier,
            "chain": chain([LOSS, graph.joint, f"{EARLIER} ({edit.operation})"]),
        },
        cause=CARRIED,
        remedy="detach() the state where the step takes it over; retain_graph=True does not help",
    )


def _spent(graph: Graph, edit: Edit, step: int) -> Finding:
    return Finding(
        rule="graph_used_twice",
        layer=edit.layer,
        severity="error",
        step=step,
        summary=f"an earlier backward has let go what the backward of {edit.operation} needs",
        evidence={
            "nodes": len(graph.nodes),
            "chain": chain([LOSS, f"{edit.layer} ({edit.operation})", "its kept tensor"]),
        },
        cause="two losses share a part of the graph and each has a backward of its own",
        remedy="add the losses and run one backward, or retain_graph=True in all but the last",
    )


def _written(graph: Graph, edit: Edit, step: int) -> Finding:
    made = f", made by {edit.maker}," if edit.maker else ""
    return Finding(
        rule="in_place_edit",
        layer=edit.layer,
        severity="error",
        step=step,
        summary=f"a tensor that the backward of {edit.operation} needs was written over in place",
        evidence={
            "kept_as": edit.kept,
            "shape": f"({edit.shape})",
            "writes_since": edit.writes,
            "edits": len(graph.edits),
            "chain": chain([LOSS, f"{edit.layer} ({edit.operation})", "its kept tensor"]),
        },
        cause=f"the tensor{made} was kept by the forward and then changed by +=, an operation "
        "with a trailing underscore, an inplace=True module, or an optimizer's early step",
        remedy="do it out of place (x = x + y), or on a clone(); step the optimizer after every "
        "backward that uses its weights",
    )
