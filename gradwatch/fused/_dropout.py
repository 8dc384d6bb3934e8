"""Dropout that keeps no mask; how the mask is drawn again stands in `kernels.dropout`."""

from torch import Tensor, nn

from gradwatch.fused._checks import refuse_call
from gradwatch.kernels.limits import MAX_DROPOUT

__all__ = ["dropout", "forward", "refuse"]


def dropout(
    x: Tensor,
    p: float = 0.5,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    training: bool = True,
) -> Tensor:
    """Add a bias, drop elements, add a residual; the bias's gradient comes in the same pass.

    The mask is drawn by Philox from a seed that ``torch.randint`` takes from the default generator
    of the device of x: after the same `torch.manual_seed` it is the same mask. It is not the mask
    stock dropout draws there, and later draws of that generator differ as well.

    Args:
        x: Input, any strides.
        p: Probability that an element is zeroed, taken to 1 / 65536.
        bias: One number a column, added before dropout.
        residual: Added after; same shape and dtype as x.
        training: Without it nothing is drawn or zeroed.

    Returns:
        ``residual + dropout(x + bias)``, contiguous, rounded once to the dtype of x.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If p is out of range or shapes do not fit.
    """
    from gradwatch.kernels.dropout import dropout as fused

    return fused(x, p if training else 0.0, bias, residual=residual)


def forward(self: nn.Dropout, input: Tensor) -> Tensor:  # noqa: A002 - the stock name
    """Stand in for ``Dropout.forward``; what the kernel cannot take goes the stock way."""
    if refuse(self, input) is not None:
        return nn.Dropout.forward(self, input)
    return dropout(input, self.p)


def refuse(module: nn.Dropout, x: Tensor) -> str | None:
    """Say why the kernel cannot take an input.

    Args:
        module: The module.
        x: Its input.

    Returns:
        The reason, or ``None`` if it can.
    """
    if not module.training or module.p == 0.0:
        return "it drops nothing: it is in eval mode, or its p is 0"
    if module.p > MAX_DROPOUT:
        return f"its p of {module.p} is over {MAX_DROPOUT}, too coarse at 16 bits an element"
    if module.inplace:
        return "it writes over its input, which the fused one does not"
    if x.dim() == 0:
        return "its input is a single number"
    return refuse_call(x)
