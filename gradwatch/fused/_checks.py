"""What every fused layer refuses, each with its reason; the stock layer then serves."""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from gradwatch.kernels import missing

__all__ = ["autocast_dtype", "refuse_call", "refuse_module", "under_autocast"]

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def refuse_module(module: nn.Module, stock: type[nn.Module]) -> str | None:
    """Say why a module's forward cannot be replaced, whatever its input.

    Args:
        module: The module.
        stock: The class whose forward the fused layer stands in for.

    Returns:
        The reason, or ``None``.
    """
    if type(module) is not stock:
        return f"{type(module).__name__} is not {stock.__name__} itself: its forward may differ"
    if "forward" in vars(module):
        return "its forward has been replaced already"
    if module._compiled_call_impl is not None:
        return "it is compiled: torch.compile fuses it on its own"
    return None


def refuse_call(*tensors: Tensor | None) -> str | None:
    """Say why a fused layer cannot take these tensors.

    Args:
        *tensors: Floating inputs and parameters; ``None`` for one that is not there.

    Returns:
        The reason, or ``None``.
    """
    present = [x for x in tensors if x is not None]
    for x in present:
        if type(x) not in (Tensor, nn.Parameter):
            return f"it is given a {type(x).__name__}, which has rules of its own"
        if x.dtype not in FLOATS:
            return f"it computes in float32, which {x.dtype} does not fit"
        if x.device != present[0].device:
            return f"its tensors are on {present[0].device} and {x.device}"
    return missing(present[0].device) or _refuse_transforms()


def _refuse_transforms() -> str | None:
    if torch.compiler.is_compiling():
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "torch.func transforms cannot see into a kernel"
    if forward_ad._current_level >= 0:  # noqa: SLF001 - no public query
        return "it has no forward-mode derivative"
    return None


def under_autocast(x: Tensor) -> bool:
    """Tell whether CUDA's autocast is on for a tensor."""
    return x.is_cuda and torch.is_autocast_enabled("cuda")


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which stock norms and losses answer: float32 under CUDA's autocast.

    CPU's autocast leaves them in the dtype of their input.

    Args:
        x: The input.

    Returns:
        The dtype of the output.
    """
    return torch.float32 if under_autocast(x) else x.dtype
