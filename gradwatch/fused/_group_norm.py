"""GroupNorm, with SiLU if wanted, fused; formula, layout and traffic in `kernels.group_norm`."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused._checks import autocast_dtype, refuse_call, under_autocast

__all__ = ["forward", "group_norm", "group_norm_silu", "refuse"]


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Normalise each group of channels in each sample, as ``torch.nn.functional.group_norm``.

    Args:
        x: Input of shape ``(batch, channels, ...)``, any strides.
        num_groups: Groups the channels are split into.
        weight: Scale of each channel.
        bias: Shift of each channel.
        eps: Added to the variance.
        dtype: Of the output; that of x by default. The stock layer's is float32 under CUDA's
            autocast.

    Returns:
        The normalised tensor, in the memory format of x.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If the channels do not split into the groups, or there is one value only.
    """
    return _run(x, num_groups, weight, bias, eps=eps, dtype=dtype, silu=False)


def group_norm_silu(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Take ``silu(group_norm(x))``; what goes into SiLU is not kept but computed again.

    Args:
        x: Input of shape ``(batch, channels, ...)``, any strides.
        num_groups: Groups the channels are split into.
        weight: Scale of each channel.
        bias: Shift of each channel.
        eps: Added to the variance.
        dtype: Of the output; that of x by default. The stock layers' is float32 under CUDA's
            autocast.

    Returns:
        The result, in the memory format of x.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If the channels do not split into the groups, or there is one value only.
    """
    return _run(x, num_groups, weight, bias, eps=eps, dtype=dtype, silu=True)


def _run(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, *, eps: float,
    dtype: torch.dtype | None, silu: bool,
) -> Tensor:  # fmt: skip
    if x.numel() == 0:
        y = F.group_norm(x, groups, weight, bias, eps)
        return (F.silu(y) if silu else y).to(dtype or x.dtype)
    from gradwatch.kernels.group_norm import group_norm as fused

    return fused(x, groups, weight, bias, eps=eps, silu=silu, dtype=dtype)


def forward(self: nn.GroupNorm, input: Tensor) -> Tensor:  # noqa: A002 - the stock name
    """Stand in for ``GroupNorm.forward``; what the kernel cannot take goes the stock way."""
    if refuse(self, input) is not None:
        return nn.GroupNorm.forward(self, input)
    dtype = autocast_dtype(input)
    return group_norm(input, self.num_groups, self.weight, self.bias, self.eps, dtype=dtype)


def refuse(module: nn.GroupNorm, x: Tensor) -> str | None:
    """Say why the kernel cannot take an input.

    Args:
        module: The module.
        x: Its input.

    Returns:
        The reason, or ``None`` if it can.
    """
    if x.dim() < 2 or x.shape[1] != module.num_channels:  # noqa: PLR2004 - batch and channels
        return f"its input of shape {tuple(x.shape)} is not (batch, {module.num_channels}, ...)"
    if x.numel() == 0:
        return "its input is empty"
    if x.numel() == module.num_groups:
        return "one value a group has no variance: the stock layer raises"
    if module.weight is not None and module.weight.dtype != x.dtype and not under_autocast(x):
        return f"its input is {x.dtype}, its weight {module.weight.dtype}, and autocast is off"
    return refuse_call(x, module.weight, module.bias)
