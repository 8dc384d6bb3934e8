"""The autograd graph: walked once from the loss, and what is wrong with it."""

from gradwatch.graph.edits import Edit
from gradwatch.graph.faults import judge_edits
from gradwatch.graph.options import GraphOptions
from gradwatch.graph.part import GraphWatch
from gradwatch.graph.rules import (
    Cut,
    find_cut,
    judge_bound,
    judge_cut,
    judge_recurrence,
    judge_saturation,
)
from gradwatch.graph.spine import spine
from gradwatch.graph.walk import Graph, Node, Surroundings, walk

__all__ = [
    "Cut",
    "Edit",
    "Graph",
    "GraphOptions",
    "GraphWatch",
    "Node",
    "Surroundings",
    "find_cut",
    "judge_bound",
    "judge_cut",
    "judge_edits",
    "judge_recurrence",
    "judge_saturation",
    "spine",
    "walk",
]
