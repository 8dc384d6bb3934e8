"""A walk that stopped at its bound says how far it came, and only one that did."""

import torch
from torch import nn

from gradwatch.graph import Surroundings, walk
from gradwatch.graph.rules import judge_bound


def product_of_sigmoids(most_nodes: int) -> tuple[int, bool, str]:
    left, right = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    loss = (left * right).sigmoid().sum()
    names = {left: "left", right: "right"}
    seen = walk([loss], Surroundings(names, lambda _: "<root>", most_nodes=most_nodes))
    told = judge_bound(seen, 0)
    return len(seen.reached), seen.stopped, told.summary if told else ""


def test_leaves_left_over_at_the_bound_are_seen_and_nothing_is_told() -> None:
    assert product_of_sigmoids(3) == (2, False, "")


def test_what_lies_behind_the_bound_is_told_with_how_far_the_walk_came() -> None:
    reached, stopped, summary = product_of_sigmoids(1)
    assert (reached, stopped) == (0, True)
    assert summary.startswith("the walk stopped at its bound, 2 nodes from the loss on")
