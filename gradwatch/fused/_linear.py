"""Linear with its activation fused; formula and traffic in `kernels.bias_activation`.

Product and bias are torch's, in the dtype autocast gives them; only the bias's gradient is not.
"""

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from gradwatch.fused._checks import refuse_call, refuse_module, under_autocast

__all__ = ["gelu_name", "linear_gelu", "linear_relu", "refuse_input", "refuse_pair", "run_pair"]


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``relu(x @ weight.T + bias)``; the backward reads one bit an element of it.

    Args:
        x: Input, any strides.
        weight: Outputs by inputs.
        bias: One number an output.

    Returns:
        The activation, contiguous.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If the bias does not fit.
    """
    from gradwatch.kernels.bias_activation import bias_activation

    return bias_activation(_product(x, weight, bias), bias, "relu")


def linear_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, approximate: str = "none"
) -> Tensor:
    """Return ``gelu(x @ weight.T + bias)``.

    Args:
        x: Input, any strides.
        weight: Outputs by inputs.
        bias: One number an output.
        approximate: ``"none"`` (erf) or ``"tanh"``, as in ``torch.nn.functional.gelu``.

    Returns:
        The activation, contiguous.

    Raises:
        KernelUnavailableError: Without Triton, or where kernels do not run.
        ValueError: If the bias does not fit, or the approximation is unknown.
    """
    from gradwatch.kernels.bias_activation import bias_activation

    return bias_activation(_product(x, weight, bias), bias, gelu_name(approximate))


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, None if bias is None else bias.detach())


def gelu_name(approximate: str) -> str:
    """Return the kernels' name for one of torch's two ways to take GELU."""
    names = {"none": "gelu", "tanh": "gelu_tanh"}
    if approximate not in names:
        raise ValueError(f"gelu: approximate is one of {tuple(names)}; got {approximate!r}.")
    return names[approximate]


def refuse_pair(linear: nn.Module, activation: nn.Module) -> str | None:
    """Say why a Linear and the activation behind it cannot run as one, whatever they are given.

    The caller vouches that nothing but the activation reads what the Linear gives.

    Args:
        linear: The first module.
        activation: The module that is given its output.

    Returns:
        The reason, or ``None``.
    """
    if type(linear) is not nn.Linear or type(activation) not in (nn.ReLU, nn.GELU):
        return f"{type(linear).__name__} → {type(activation).__name__} is not Linear → ReLU or GELU"
    reason = _refuse_member(linear) or _refuse_member(activation) or _refuse_options(activation)
    if reason is not None:
        return reason
    if _has_any_global_hook():
        return "a hook on all modules would miss the two"
    if linear.bias is None and isinstance(activation, nn.GELU):
        return "without a bias there is nothing to fuse with GELU"
    return None


def refuse_input(linear: nn.Module, x: object) -> str | None:
    """Say why a pair cannot run as one on this input.

    Args:
        linear: The first module of the pair.
        x: What it is given.

    Returns:
        The reason, or ``None``.
    """
    if not (isinstance(linear, nn.Linear) and isinstance(x, Tensor)):
        return f"it is given a {type(x).__name__}"
    if x.dtype != linear.weight.dtype and not under_autocast(x):
        return f"its input is {x.dtype}, its weight {linear.weight.dtype}, and autocast is off"
    return refuse_call(x, linear.weight, linear.bias)


def run_pair(linear: nn.Module, activation: nn.Module, x: Tensor) -> Tensor:
    """Run a pair that neither :func:`refuse_pair` nor :func:`refuse_input` refuses."""
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"run_pair: starts with a Linear; got {type(linear).__name__}.")
    if isinstance(activation, nn.GELU):
        return linear_gelu(x, linear.weight, linear.bias, approximate=activation.approximate)
    return linear_relu(x, linear.weight, linear.bias)


def _refuse_member(module: nn.Module) -> str | None:
    hooks = (
        module._forward_hooks,  # noqa: SLF001 - no public query
        module._forward_pre_hooks,  # noqa: SLF001
        module._backward_hooks,  # noqa: SLF001
        module._backward_pre_hooks,  # noqa: SLF001
    )
    if any(hooks):
        return f"{type(module).__name__} carries a hook, which a fused pair would not fire"
    return refuse_module(module, type(module))


def _refuse_options(activation: nn.Module) -> str | None:
    if getattr(activation, "inplace", False):
        return "its ReLU writes over its input, which the fused one does not"
    approximate = getattr(activation, "approximate", "none")
    if approximate not in ("none", "tanh"):
        return f"GELU knows no approximation {approximate!r}"
    return None
