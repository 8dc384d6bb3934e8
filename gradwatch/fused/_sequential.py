"""Sequential whose pairs of Linear and activation run as one.

Inside a Sequential the activation is all that reads what the Linear gives: that is the proof a pair
needs. It holds for this very class, and for members that carry no hooks.
"""

from itertools import pairwise
from typing import Any

from torch import nn

from gradwatch.fused._linear import refuse_input, refuse_pair, run_pair

__all__ = ["forward", "refuse"]


def refuse(module: nn.Sequential, input: Any) -> str | None:  # noqa: A002, ANN401 - the stock name
    """Say why no pair of a Sequential can run as one.

    Args:
        module: The module.
        input: What it is given; dtype and device stand for those of the later members' inputs.

    Returns:
        The reason for the last Linear that an activation follows, or ``None`` if a pair can.
    """
    reason: str | None = "no Linear in it is followed by ReLU or GELU"
    for linear, activation in pairwise(module):
        if isinstance(linear, nn.Linear) and isinstance(activation, (nn.ReLU, nn.GELU)):
            reason = refuse_pair(linear, activation) or refuse_input(linear, input)
            if reason is None:
                return None
    return reason


def forward(self: nn.Sequential, input: Any) -> Any:  # noqa: A002, ANN401 - the stock name
    """Stand in for ``Sequential.forward``; members that are no pair are called as ever."""
    members, at = list(self), 0
    while at < len(members):
        linear, activation = (*members[at : at + 2], nn.Identity())[:2]
        if refuse_pair(linear, activation) is None and refuse_input(linear, input) is None:
            input, at = run_pair(linear, activation, input), at + 2  # noqa: A001 - as above
        else:
            input, at = linear(input), at + 1  # noqa: A001 - as above
    return input
