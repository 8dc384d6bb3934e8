"""Floating-point operations of what ran: seen as it runs, or read off the graph afterwards.

One way of counting for both. Matrix products, convolutions and attention count what torch's own
FLOP counter says (2mnk for a product of m×k and k×n); everything else that computes counts one for
each number of its largest tensor; what only moves numbers or looks at them counts nothing.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from torch.utils.flop_counter import (
    conv_flop_count,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from gradwatch.graph.edits import plainly_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from torch._ops import OpOverload

    Sizes = tuple[int, ...]
    Known = Mapping[str, Sizes]

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
# A node is named without the underscores that mark an operation as private or in place.
_SIZES = "_sym_sizes"
_FREE = frozenset(name.strip("_") for name in SILENT | MOVES)


def matrix_flops(
    operation: OpOverload[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], out: object
) -> float:
    """Count matrix products, convolutions and attention as they run.

    Args:
        operation: What ran.
        args: Its arguments.
        kwargs: Its keyword arguments.
        out: What it returned.

    Returns:
        Floating-point operations; 0 for anything else.
    """
    packet = operation._overloadpacket  # noqa: SLF001 - no public way to ask
    # torch's counter knows the fused attention of every device but this one.
    if packet.__name__ == "_scaled_dot_product_flash_attention_for_cpu":
        return float(sdpa_flop_count(*(each.shape for each in args[:3])))
    if packet.__name__ == "_scaled_dot_product_flash_attention_for_cpu_backward":
        return float(sdpa_backward_flop_count(*(each.shape for each in args[:4])))
    if packet not in flop_registry:
        return 0.0
    return float(flop_registry[packet](*args, **kwargs, out_val=out))


def simple_flops(operation: str, counts: Iterable[int]) -> float:
    """Count one operation for each number of the largest tensor, unless values are only moved.

    A lower bound that gives elementwise work and reductions a place on the roofline.

    Args:
        operation: Name of what ran.
        counts: Numbers in each of its tensors, in and out.

    Examples:
        >>> simple_flops("add", [6, 6]), simple_flops("cat", [6, 12])
        (6.0, 0.0)
    """
    return 0.0 if operation.strip("_") in _FREE else float(max(counts, default=0))


def node_flops(node: Any, operation: str) -> float:  # noqa: ANN401 - a node has no public type
    """Count the operations of a graph node's forward, from the sizes that the node knows.

    What it does not know it counts as 1: a product of which neither factor is kept counts two for
    each number it gives.

    Args:
        node: A node of the graph.
        operation: Its operation.

    Examples:
        >>> import torch
        >>> product = torch.ones(2, 3, requires_grad=True) @ torch.ones(3, 5)
        >>> node_flops(product.grad_fn, "mm")
        60.0
    """
    metadata = getattr(node, "_input_metadata", ())
    if not metadata or operation.strip("_") in _FREE:
        return 0.0
    out, known = _plain(metadata[0].shape), _known_sizes(node)
    if operation in _PRODUCTS:
        return float(_PRODUCTS[operation](node, known, out))
    return simple_flops(operation, map(prod, (out, *known.values())))


def _known_sizes(node: Any) -> Known:  # noqa: ANN401 - as above
    """Give the sizes of what a node keeps as it is, and of what it keeps the sizes of."""
    kept = {
        name: getattr(_asked(node, attribute), "shape", ())
        for name, attribute in plainly_kept(node)
    }
    kind: Any = type(node)
    sized = {name: getattr(node, f"_saved_{name}{_SIZES}") for name in _sized_names(kind)}
    return {name: _plain(sizes) for name, sizes in (*kept.items(), *sized.items()) if sizes}


def _plain(sizes: Iterable[int]) -> Sizes:
    """Leave out the sizes that are no numbers: of ragged tensors."""
    return tuple(size for size in sizes if type(size) is int)


@lru_cache(maxsize=1024)
def _sized_names(kind: Hashable) -> tuple[str, ...]:
    names = (name.removeprefix("_saved_") for name in dir(kind) if name.endswith(_SIZES))
    return tuple(name.removesuffix(_SIZES) for name in names)


def _asked(node: Any, name: str) -> object:  # noqa: ANN401 - as above
    try:
        return getattr(node, name)
    except RuntimeError:  # written over or let go: the backward will say so itself
        return None


def _product(left: str, right: str) -> Callable[[Any, Known, Sizes], int]:
    """Count a product whose inner length stands in whichever factor is kept."""

    def count(_node: object, known: Known, out: Sizes) -> int:
        rows, columns = known.get(left, ()), known.get(right, ())
        inner = rows[-1] if rows else columns[-2] if columns else 1
        return 2 * prod(out) * inner

    return count


def _convolution(node: Any, known: Known, out: Sizes) -> int:  # noqa: ANN401 - as above
    if not ("input" in known and "weight" in known):
        return 2 * prod(out)
    transposed = bool(node._saved_transposed)  # noqa: SLF001 - no public way to ask
    x, weight, y = (list(each) for each in (known["input"], known["weight"], out))
    return int(conv_flop_count(x, weight, y, transposed))


def _attention(_node: object, known: Known, out: Sizes) -> int:
    if not all(name in known for name in ("query", "key", "value")):
        return 2 * prod(out)
    return int(sdpa_flop_count(known["query"], known["key"], known["value"]))


_PRODUCTS: Mapping[str, Callable[[Any, Known, Sizes], int]] = {
    "addmm": _product("mat1", "mat2"),
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "baddbmm": _product("batch1", "batch2"),
    "convolution": _convolution,
    "scaled_dot_product_flash_attention": _attention,
    "scaled_dot_product_flash_attention_for_cpu": _attention,
    "scaled_dot_product_efficient_attention": _attention,
    "scaled_dot_product_cudnn_attention": _attention,
}
