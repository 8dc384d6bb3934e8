"""LayerNorm in one pass forward and one backward; formula, layout and traffic in `kernels.norm`."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradwatch.fused._checks import autocast_dtype
from gradwatch.fused._norms import refuse_norm

__all__ = ["add_layer_norm", "forward", "layer_norm", "refuse"]


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Normalise over the last dimensions, as ``torch.nn.functional.layer_norm``.

    Args:
        x: Input, any strides.
        normalized_shape: Sizes of the last dimensions, to normalise over together.
        weight: Scale of that shape.
        bias: Shift of that shape.
        eps: Added to the variance.
        dtype: Of the output; that of x by default. The stock layer's is float32 under CUDA's
            autocast.

    Returns:
        The normalised tensor, contiguous.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If a row has more elements than a program holds.
    """
    from gradwatch.kernels.norm import norm

    y: Tensor = norm(x, math.prod(normalized_shape), weight, bias, eps=eps, dtype=dtype)
    return y


def add_layer_norm(  # noqa: PLR0917 - the order of torch's layer_norm
    x: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Add a residual and normalise the sum in the same pass.

    Args:
        x: Input, any strides.
        residual: Added to x, in the type torch promotes the two to; of the same shape.
        normalized_shape: Sizes of the last dimensions, to normalise over together.
        weight: Scale of that shape.
        bias: Shift of that shape.
        eps: Added to the variance.
        dtype: Of the normalised tensor; that of the sum by default.

    Returns:
        The normalised sum and the sum.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If residual has another shape, or a row has more elements than a program holds.
    """
    from gradwatch.kernels.norm import norm

    n = math.prod(normalized_shape)
    y, total = norm(x, n, weight, bias, residual=residual, eps=eps, dtype=dtype)
    return y, total


def refuse(module: nn.LayerNorm, x: Tensor) -> str | None:
    """Say why the kernel cannot take an input.

    Args:
        module: The module.
        x: Its input.

    Returns:
        The reason, or ``None`` if it can.
    """
    return refuse_norm(x, module.normalized_shape, module.weight, module.bias)


def forward(self: nn.LayerNorm, input: Tensor) -> Tensor:  # noqa: A002 - the stock name
    """Stand in for ``LayerNorm.forward``; what the kernel cannot take goes the stock way."""
    if refuse(self, input) is not None:
        return nn.LayerNorm.forward(self, input)
    dtype = autocast_dtype(input)
    return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps, dtype=dtype)
