"""SwiGLU and GeGLU in one pass forward and one backward; formula and layout in `kernels.gated`."""

from torch import Tensor

from gradwatch.fused._checks import refuse_call
from gradwatch.fused._linear import gelu_name

__all__ = ["gated_eligible", "geglu", "geglu_packed", "swiglu", "swiglu_packed"]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return ``silu(gate) * up``, rounded once.

    Args:
        gate: What the activation is taken of, any strides.
        up: What it is multiplied by; same shape and dtype.

    Returns:
        The product, contiguous.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If up is not like gate.
    """
    from gradwatch.kernels.gated import gated

    return gated(gate, up, "silu")


def geglu(gate: Tensor, up: Tensor, *, approximate: str = "none") -> Tensor:
    """Return ``gelu(gate) * up``, rounded once.

    Args:
        gate: What the activation is taken of, any strides.
        up: What it is multiplied by; same shape and dtype.
        approximate: ``"none"`` (erf) or ``"tanh"``, as in ``torch.nn.functional.gelu``.

    Returns:
        The product, contiguous.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If up is not like gate, or the approximation is unknown.
    """
    from gradwatch.kernels.gated import gated

    return gated(gate, up, gelu_name(approximate))


def swiglu_packed(x: Tensor, *, gate_first: bool = True) -> Tensor:
    """Return ``silu(gate) * up`` of the two halves of the last dimension.

    Args:
        x: Both halves side by side, any strides.
        gate_first: The gate is the first half, as in fused Llama projections, or the second, the
            order of ``torch.nn.GLU``.

    Returns:
        The product, contiguous, half as wide.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If the last dimension cannot be halved.
    """
    from gradwatch.kernels.gated import gated_packed

    return gated_packed(x, "silu", gate_first=gate_first)


def geglu_packed(x: Tensor, *, approximate: str = "none", gate_first: bool = True) -> Tensor:
    """Return ``gelu(gate) * up`` of the two halves of the last dimension.

    Args:
        x: Both halves side by side, any strides.
        approximate: ``"none"`` (erf) or ``"tanh"``, as in ``torch.nn.functional.gelu``.
        gate_first: The gate is the first half, or the second, the order of ``torch.nn.GLU``.

    Returns:
        The product, contiguous, half as wide.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If the last dimension cannot be halved, or the approximation is unknown.
    """
    from gradwatch.kernels.gated import gated_packed

    return gated_packed(x, gelu_name(approximate), gate_first=gate_first)


def gated_eligible(gate: Tensor, up: Tensor | None = None) -> str | None:
    """Say why a fused gated unit cannot take these tensors: no stock module stands behind one.

    Args:
        gate: The gate, or both halves packed.
        up: What it is multiplied by, if it is a tensor of its own.

    Returns:
        The reason, or ``None`` if it can.

    >>> import torch
    >>> gated_eligible(torch.ones(2, 3))
    'its input of shape (2, 3) does not hold two halves'
    >>> gated_eligible(torch.ones(2, 3), torch.ones(3))
    'its gate is (2, 3) torch.float32, what it is multiplied by (3,) torch.float32'
    """
    if up is None and (gate.dim() == 0 or gate.shape[-1] % 2):
        return f"its input of shape {tuple(gate.shape)} does not hold two halves"
    if up is not None and (gate.shape, gate.dtype) != (up.shape, up.dtype):
        return (
            f"its gate is {tuple(gate.shape)} {gate.dtype}, "
            f"what it is multiplied by {tuple(up.shape)} {up.dtype}"
        )
    return refuse_call(gate, up)
