"""What LayerNorm and RMSNorm refuse alike."""

import math
from collections.abc import Sequence

from torch import Tensor

from gradwatch.fused._checks import refuse_call, under_autocast
from gradwatch.kernels.limits import MAX_NORM_ELEMENTS

__all__ = ["refuse_norm"]


def refuse_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> str | None:
    """Say why a norm over rows cannot take these tensors.

    Args:
        x: The input.
        normalized_shape: Sizes of its last dimensions.
        weight: Scale, if any.
        bias: Shift, if any.

    Returns:
        The reason, or ``None``.
    """
    shape, n = tuple(normalized_shape), math.prod(normalized_shape)
    if n > MAX_NORM_ELEMENTS:
        return f"rows of {n} elements spill registers (at most {MAX_NORM_ELEMENTS})"
    if n == 0 or x.dim() < len(shape) or tuple(x.shape[x.dim() - len(shape) :]) != shape:
        return f"its input of shape {tuple(x.shape)} does not end in {shape}"
    if weight is not None and weight.dtype != x.dtype and not under_autocast(x):
        return f"its input is {x.dtype}, its weight {weight.dtype}, and autocast is off"
    return refuse_call(x, weight, bias)
