"""Registration of operations with torch, so that they trace, compile and show in profiles."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["differentiable", "nothing", "promoted", "register"]

_LIBRARY: Any = torch.library.Library("gradwatch", "FRAGMENT")


def register(
    schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]
) -> Callable[..., Any]:
    """Define an operation ``gradwatch::<name>`` with its kernel and its shape function.

    ``Library`` is used in place of ``custom_op``: its call costs a third less, which shows on small
    layers. The CPU entry serves the interpreter; elsewhere the launch refuses with the reason.

    Args:
        schema: Name, arguments and results in torch's schema language.
        implementation: Runs the kernels. It must not write into its arguments.
        fake: Returns empty results of the right shape, dtype and strides.

    Returns:
        The callable operation.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    for key in ("CUDA", "CPU"):
        _LIBRARY.impl(name, implementation, key)
    torch.library.register_fake(f"gradwatch::{name}", fake, lib=_LIBRARY)
    operation: Callable[..., Any] = getattr(torch.ops.gradwatch, name).default
    return operation


def nothing(like: Tensor) -> Tensor:
    """Return the empty tensor that stands for a result that was not asked for."""
    return like.new_empty(0)


def promoted(x: Tensor, other: Tensor | None) -> torch.dtype:
    """Return the dtype of ``x + other``, or that of x where nothing is added."""
    return x.dtype if other is None else torch.promote_types(x.dtype, other.dtype)


def differentiable(
    stock: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    needs: Sequence[bool],
    grad_output: Tensor,
) -> tuple[Tensor | None, ...]:
    """Compute gradients that can be differentiated again, through the stock operation.

    A fused backward is opaque to autograd: where a second derivative is asked for
    (``create_graph=True``: gradient penalties, meta-learning), this recomputes the layer instead.

    Args:
        stock: The same function in operations that autograd knows.
        inputs: Its tensor arguments.
        needs: Which of them need a gradient.
        grad_output: Gradient of its result.

    Returns:
        One gradient an input, ``None`` where none is needed.
    """
    wanted = [x for x, need in zip(inputs, needs, strict=True) if need and x is not None]
    grads = iter(torch.autograd.grad(stock(*inputs), wanted, grad_output, create_graph=True))
    return tuple(
        next(grads) if need and x is not None else None
        for x, need in zip(inputs, needs, strict=True)
    )
