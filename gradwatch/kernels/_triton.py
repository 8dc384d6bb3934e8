"""The one place that imports Triton: decorator, launch and the sizes a launch is planned with."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Protocol

import torch

from gradwatch.kernels import require

require("cuda")

import triton  # noqa: E402  (after the check, so that its absence is explained)
import triton.language as tl  # noqa: E402

__all__ = ["Kernel", "jit", "launch", "next_power_of_2", "resident_programs", "tl"]

# Two programs an SM, so that one loads while the other computes. On the CPU the interpreter has no
# SMs; the number of an H100 stands in.
_PROGRAMS_PER_SM = 2
_WARPS_PER_SM = 16
_STAND_IN_SMS = 132


class Kernel(Protocol):
    """What ``@jit`` makes of a function."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """Return the launcher of this grid."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Inline this function into the kernel that calls it."""


def jit(do_not_specialize: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Kernel]:
    """Compile the decorated function with Triton.

    Args:
        do_not_specialize: Arguments that change with the batch: a new value compiles nothing.

    Returns:
        The decorator.
    """
    decorator: Callable[[Callable[..., Any]], Kernel] = triton.jit(
        do_not_specialize=list(do_not_specialize)
    )
    return decorator


def launch(kernel: Kernel, grid: tuple[int, ...], *args: object, **constants: object) -> None:
    """Run a kernel on the device of its first tensor; an empty grid runs nothing.

    Args:
        kernel: The kernel.
        grid: Programs along x, y, z. CUDA allows 65535 along y and z.
        *args: The kernel's arguments; ``None`` for a tensor that is not there.
        **constants: Compile-time constants and ``num_warps``.

    Raises:
        KernelUnavailableError: If kernels do not run on that device.
    """
    device = next(arg.device for arg in args if isinstance(arg, torch.Tensor))
    require(device)
    if 0 in grid:
        return
    with _current(device):
        kernel[grid](*args, **constants)


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def resident_programs(device: torch.device, warps: int) -> int:
    """Return how many programs share the rows where each takes a band of them.

    As many as run at once, so that what a program reads or writes once (weights, partial sums) is
    little beside its rows. The number fixes the order of the sums: it depends on device and tile
    alone, never on the data.

    Args:
        device: Where the kernel runs.
        warps: Warps of a program.

    Returns:
        Two programs an SM, or one of at least ``_WARPS_PER_SM`` warps.
    """
    return max(min(_PROGRAMS_PER_SM, _WARPS_PER_SM // warps), 1) * _multiprocessors(device)


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return _STAND_IN_SMS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _current(device: torch.device) -> AbstractContextManager[None]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
