"""Optimizers that run forward and backward several times in one step."""

from __future__ import annotations

# Other optimizers than these call their closure once, which is what the base class promises.
CLOSURE_AGAIN = frozenset({"LBFGS", "SAM", "ASAM", "GSAM"})


def evaluates_again(optimizer: object) -> bool:
    """Tell whether an optimizer evaluates its closure more than once a step.

    A fault in a later evaluation finds weights that have already moved.

    Args:
        optimizer: The optimizer, or a subclass of a known one.

    Examples:
        >>> import torch
        >>> evaluates_again(torch.optim.LBFGS([torch.zeros(1, requires_grad=True)]))
        True
    """
    return bool(CLOSURE_AGAIN & {base.__name__ for base in type(optimizer).__mro__})
