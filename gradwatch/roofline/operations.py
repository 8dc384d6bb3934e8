"""What an operation is to the roofline: a kernel or a view, arithmetic or movement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import (
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from torch._ops import OpOverload

# Memory is handed out or looked at in another way: nothing is launched.
SILENT = frozenset({
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "_unsafe_view", "_reshape_alias", "lift_fresh", "set_", "resize_", "detach", "detach_",
    "view", "reshape", "t", "transpose", "permute", "expand", "as_strided", "select", "slice",
    "unsqueeze", "squeeze", "split", "chunk", "unbind", "alias", "resolve_conj", "resolve_neg",
    "expand_as", "view_as", "flatten", "narrow", "unfold", "movedim", "is_same_size", "result_type",
    "split_with_sizes", "diagonal", "real", "imag", "view_as_real", "view_as_complex", "item",
    "_local_scalar_dense", "is_nonzero", "record_stream",
})  # fmt: skip
# Values are moved, made up or picked, not computed.
MOVES = frozenset({
    "arange", "bernoulli_", "cat", "clone", "constant_pad_nd", "copy_", "embedding",
    "embedding_dense_backward", "fill_", "flip", "full", "full_like", "gather", "index",
    "index_put_", "index_put", "index_select", "index_fill", "masked_fill", "masked_fill_",
    "new_full", "new_ones", "new_zeros", "normal_", "ones", "ones_like", "rand", "rand_like",
    "randint", "randn", "randn_like", "repeat", "roll", "scatter", "scatter_", "select_backward",
    "slice_backward", "stack", "_to_copy", "to", "tril", "triu", "unfold_backward", "uniform_",
    "where", "zero_", "zeros", "zeros_like", "random_", "exponential_", "contiguous",
})  # fmt: skip
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


def matrix_flops(
    operation: OpOverload[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], out: object
) -> float:
    """Count what torch's own FLOP counter counts: matrix products, convolutions, attention.

    Args:
        operation: What ran.
        args: Its arguments.
        kwargs: Its keyword arguments.
        out: What it returned.

    Returns:
        Floating-point operations; 0 for anything else.
    """
    name, shapes = short_name(operation), [tensor.shape for tensor in tensors_of(args)]
    # torch's counter knows the fused attention of every device but this one.
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        return float(sdpa_flop_count(*shapes[:3]))
    if name == "_scaled_dot_product_flash_attention_for_cpu_backward":
        return float(sdpa_backward_flop_count(*shapes[:4]))
    packet = operation._overloadpacket
    if packet not in flop_registry:
        return 0.0
    return float(flop_registry[packet](*args, **kwargs, out_val=out))


def simple_flops(operation: OpOverload[..., Any], tensors: Sequence[Tensor]) -> float:
    """Count one operation per element of the largest tensor, unless values are only moved.

    A lower bound that gives elementwise work and reductions a place on the roofline.

    Args:
        operation: What ran.
        tensors: Its tensors, in and out.
    """
    if short_name(operation) in MOVES:
        return 0.0
    return float(max((tensor.numel() for tensor in tensors), default=0))
