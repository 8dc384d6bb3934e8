"""What an operation is to the roofline: a kernel or a view, what it reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from gradwatch.flops import SILENT

if TYPE_CHECKING:
    from torch import Tensor
    from torch._ops import OpOverload

# Only so many values of the first argument are read as come out.
GATHERS = frozenset({"embedding", "gather", "index", "index_select"})
# What is written into is not read before.
OVERWRITES = frozenset({
    "bernoulli_", "copy_", "exponential_", "fill_", "normal_", "random_", "uniform_", "zero_",
})  # fmt: skip


def short_name(operation: OpOverload[..., Any]) -> str:
    """Give an operation's name without namespace and overload.

    Args:
        operation: As a dispatch mode is handed it.

    Examples:
        >>> short_name(torch.ops.aten.add.Tensor)
        'add'
    """
    name: str = operation._schema.name
    return name.rpartition("::")[2]


def launches(operation: OpOverload[..., Any]) -> bool:
    """Tell whether an operation runs a kernel, and not only looks at memory in another way.

    Args:
        operation: As a dispatch mode is handed it.

    Examples:
        >>> launches(torch.ops.aten.relu.default), launches(torch.ops.aten.t.default)
        (True, False)
    """
    if operation.is_view or operation.namespace in {"prim", "profiler"}:
        return False
    return short_name(operation) not in SILENT


def tensors_of(values: object) -> list[Tensor]:
    """Give the tensors among the arguments or results of an operation."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
