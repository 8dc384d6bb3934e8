"""RMSNorm in one pass forward and one backward; formula, layout and traffic in `kernels.norm`."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradwatch.fused._checks import autocast_dtype
from gradwatch.fused._norms import refuse_norm

__all__ = ["add_rms_norm", "forward", "refuse", "rms_norm"]


def rms_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Normalise over the last dimensions, as ``torch.nn.functional.rms_norm``.

    Args:
        x: Input, any strides.
        normalized_shape: Sizes of the last dimensions, to normalise over together.
        weight: Scale of that shape.
        eps: Added to the mean square; float32's epsilon by default.
        dtype: Of the output; that of x by default. The stock layer's is float32 under CUDA's
            autocast.

    Returns:
        The normalised tensor, contiguous.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If a row has more elements than a program holds.
    """
    from gradwatch.kernels.norm import norm

    y: Tensor = norm(
        x, math.prod(normalized_shape), weight, eps=_or_default(eps), center=False, dtype=dtype
    )
    return y


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Add a residual and normalise the sum in the same pass.

    Args:
        x: Input, any strides.
        residual: Added to x, in the type torch promotes the two to; of the same shape.
        normalized_shape: Sizes of the last dimensions, to normalise over together.
        weight: Scale of that shape.
        eps: Added to the mean square; float32's epsilon by default.
        dtype: Of the normalised tensor; that of the sum by default.

    Returns:
        The normalised sum and the sum.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If residual has another shape, or a row has more elements than a program holds.
    """
    from gradwatch.kernels.norm import norm

    n = math.prod(normalized_shape)
    y, total = norm(
        x, n, weight, residual=residual, eps=_or_default(eps), center=False, dtype=dtype
    )
    return y, total


def refuse(module: nn.RMSNorm, x: Tensor) -> str | None:
    """Say why the kernel cannot take an input.

    Args:
        module: The module.
        x: Its input.

    Returns:
        The reason, or ``None`` if it can.
    """
    return refuse_norm(x, module.normalized_shape, module.weight, None)


def forward(self: nn.RMSNorm, input: Tensor) -> Tensor:  # noqa: A002 - the stock name
    """Stand in for ``RMSNorm.forward``; what the kernel cannot take goes the stock way."""
    if refuse(self, input) is not None:
        return nn.RMSNorm.forward(self, input)
    dtype = autocast_dtype(input)
    return rms_norm(input, self.normalized_shape, self.weight, self.eps, dtype=dtype)


def _or_default(eps: float | None) -> float:
    # Of the dtype torch computes in, which is float32 for half types too.
    return torch.finfo(torch.float32).eps if eps is None else eps
