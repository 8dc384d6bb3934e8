"""What the forward of a graph node took: an estimate good enough to rank recomputations by.

A product of m×k and k×n takes 2mnk, a convolution the same with its filter for k, attention two
products over the keys; any other operation one for each number it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from gradwatch.graph.edits import plainly_kept

Shapes = Mapping[str, tuple[int, ...]]


def flops_of(node: Any, operation: str) -> float:  # noqa: ANN401 - a node has no public type
    """Estimate the floating-point operations of a node's forward.

    Args:
        node: A node of the graph.
        operation: Its operation.

    Examples:
        >>> import torch
        >>> product = torch.ones(2, 3, requires_grad=True) @ torch.ones(3, 5)
        >>> flops_of(product.grad_fn, "mm")
        60.0
    """
    metadata = getattr(node, "_input_metadata", ())
    out = prod(metadata[0].shape) if metadata else 0
    rule = _INNER.get(operation)
    return float(2 * out * rule(_shapes(node)) if rule else out)


def _shapes(node: Any) -> Shapes:  # noqa: ANN401 - as above
    """Give the sizes of what a node keeps as it is, and of the products it keeps sizes of."""
    known: dict[str, tuple[int, ...]] = {}
    for kept, name in plainly_kept(node):
        sizes: Any = getattr(node, f"{name}_sym_sizes", None)
        known[kept] = tuple(getattr(_asked(node, name), "shape", ()) if sizes is None else sizes)
    return known


def _asked(node: Any, name: str) -> object:  # noqa: ANN401 - as above
    try:
        return getattr(node, name)
    except RuntimeError:  # written over or let go: the backward will say so itself
        return None


def _shared(left: str, right: str) -> Callable[[Shapes], int]:
    """Give the inner length of a product from whichever factor is kept."""

    def length(shapes: Shapes) -> int:
        rows, columns = shapes.get(left, ()), shapes.get(right, ())
        return rows[-1] if rows else columns[-2] if columns else 1

    return length


def _filter(shapes: Shapes) -> int:
    return prod(shapes.get("weight", ())[1:])


def _keys(shapes: Shapes) -> int:
    # Scores, and their product with the values.
    return 2 * shapes["key"][-2] if shapes.get("key") else 1


_INNER: Mapping[str, Callable[[Shapes], int]] = {
    "addmm": _shared("mat1", "mat2"),
    "mm": _shared("self", "mat2"),
    "bmm": _shared("self", "mat2"),
    "baddbmm": _shared("batch1", "batch2"),
    "convolution": _filter,
    "scaled_dot_product_flash_attention": _keys,
    "scaled_dot_product_flash_attention_for_cpu": _keys,
    "scaled_dot_product_efficient_attention": _keys,
    "scaled_dot_product_cudnn_attention": _keys,
}
