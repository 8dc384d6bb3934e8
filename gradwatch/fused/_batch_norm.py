"""BatchNorm with ReLU, and a residual before it, fused; formula in `kernels.batch_norm`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused._checks import refuse_call

__all__ = [
    "batch_norm",
    "batch_norm_add_relu",
    "batch_norm_relu",
    "forward",
    "forward_add_relu",
    "forward_relu",
    "refuse",
]

_IMAGE_DIMENSIONS = 4


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel over the batch, as ``torch.nn.functional.batch_norm``.

    Args:
        x: Input of shape ``(batch, channels, ...)``, any strides.
        running_mean: Mean used outside training; in training, updated in place.
        running_var: Variance used outside training; in training, updated in place (unbiased).
        weight: Scale of each channel.
        bias: Shift of each channel.
        training: Whether to use the statistics of the batch.
        momentum: Share of the batch in the new running statistics.
        eps: Added to the variance.

    Returns:
        The normalised tensor, in the dtype and memory format of x.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If x has one value a channel in training, or no running statistics outside it.
    """
    return _run(
        x, running_mean, running_var, weight, bias, training=training, momentum=momentum, eps=eps
    )


def batch_norm_relu(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Take ``relu(batch_norm(x))``; the backward computes ReLU's mask again from x.

    Args:
        x: Input of shape ``(batch, channels, ...)``, any strides.
        running_mean: Mean used outside training; in training, updated in place.
        running_var: Variance used outside training; in training, updated in place (unbiased).
        weight: Scale of each channel.
        bias: Shift of each channel.
        training: Whether to use the statistics of the batch.
        momentum: Share of the batch in the new running statistics.
        eps: Added to the variance.

    Returns:
        The result, in the dtype and memory format of x.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If x has one value a channel in training, or no running statistics outside it.
    """
    return _run(
        x, running_mean, running_var, weight, bias,
        training=training, momentum=momentum, eps=eps, relu=True,
    )  # fmt: skip


def batch_norm_add_relu(  # noqa: PLR0917 - the order of torch's batch_norm
    x: Tensor,
    residual: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Take ``relu(batch_norm(x) + residual)``; ReLU's mask is kept in one bit an element.

    Args:
        x: Input of shape ``(batch, channels, ...)``, any strides.
        residual: Added to the normalised tensor; same shape and dtype as x.
        running_mean: Mean used outside training; in training, updated in place.
        running_var: Variance used outside training; in training, updated in place (unbiased).
        weight: Scale of each channel.
        bias: Shift of each channel.
        training: Whether to use the statistics of the batch.
        momentum: Share of the batch in the new running statistics.
        eps: Added to the variance.

    Returns:
        The result, in the dtype and memory format of x.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If residual is not like x, x has one value a channel in training, or there are
            no running statistics outside it.
    """
    return _run(
        x, running_mean, running_var, weight, bias, residual=residual,
        training=training, momentum=momentum, eps=eps, relu=True,
    )  # fmt: skip


def _run(
    x: Tensor, mean: Tensor | None, var: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    *, training: bool, momentum: float, eps: float, residual: Tensor | None = None,
    relu: bool = False,
) -> Tensor:  # fmt: skip
    if x.numel() == 0:
        y = F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
        y = y if residual is None else y + residual
        return F.relu(y) if relu else y
    from gradwatch.kernels.batch_norm import batch_norm as fused

    return fused(
        x, mean, var, weight, bias, residual=residual,
        training=training, momentum=momentum, eps=eps, relu=relu,
    )  # fmt: skip


def forward(self: nn.BatchNorm2d, input: Tensor) -> Tensor:  # noqa: A002 - the stock name
    """Stand in for ``BatchNorm2d.forward``; what the kernel cannot take goes the stock way."""
    if refuse(self, input) is not None:
        return nn.BatchNorm2d.forward(self, input)
    return batch_norm(input, *_statistics(self), **_options(self))


def forward_relu(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Take ``relu(norm(x))``; what the kernel cannot take goes the stock way."""
    if refuse(norm, x) is not None:
        return F.relu(nn.BatchNorm2d.forward(norm, x))
    return batch_norm_relu(x, *_statistics(norm), **_options(norm))


def forward_add_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor) -> Tensor:
    """Take ``relu(norm(x) + residual)``; what the kernel cannot take goes the stock way."""
    alike = (x.shape, x.dtype, x.device) == (residual.shape, residual.dtype, residual.device)
    if not alike or refuse(norm, x) is not None:
        return F.relu(nn.BatchNorm2d.forward(norm, x) + residual)
    return batch_norm_add_relu(x, residual, *_statistics(norm), **_options(norm))


def _statistics(module: nn.BatchNorm2d) -> tuple[Tensor | None, ...]:
    use_running = not module.training or module.track_running_stats
    return (
        module.running_mean if use_running else None,
        module.running_var if use_running else None,
        module.weight,
        module.bias,
    )


def _options(module: nn.BatchNorm2d) -> dict[str, Any]:
    training, momentum = _uses_batch(module), _count_batch(module)
    return {"training": training, "momentum": momentum, "eps": module.eps}


def _uses_batch(module: nn.BatchNorm2d) -> bool:
    return module.training or (module.running_mean is None and module.running_var is None)


def _count_batch(module: nn.BatchNorm2d) -> float:
    """Count the batch as the stock layer does, and return its share in the running statistics."""
    share = 0.0 if module.momentum is None else module.momentum
    counter: Tensor | None = module.num_batches_tracked
    if not (module.training and module.track_running_stats) or counter is None:
        return share
    counter.add_(1)
    # Without a momentum the mean is cumulative; torch, too, reads the counter from the device.
    return 1.0 / float(counter) if module.momentum is None else share


def refuse(module: nn.BatchNorm2d, x: Tensor) -> str | None:
    """Say why the kernel cannot take an input.

    Args:
        module: The module.
        x: Its input.

    Returns:
        The reason, or ``None`` if it can.
    """
    if x.dim() != _IMAGE_DIMENSIONS or x.shape[1] != module.num_features:
        return f"its input of shape {tuple(x.shape)} is not (batch, {module.num_features}, H, W)"
    if x.numel() == 0:
        return "its input is empty"
    if _uses_batch(module) and x.numel() == x.shape[1]:
        return "one value a channel has no variance: the stock layer raises"
    given = module.weight, module.bias, module.running_mean, module.running_var
    present = [t for t in given if t is not None]
    if (module.running_mean is None) != (module.running_var is None):
        return "it has one of the two running statistics"
    for t in present:
        if t.dtype not in (x.dtype, torch.float32):
            return f"its input is {x.dtype}, one of its parameters or buffers {t.dtype}"
    return refuse_call(x, *present)
