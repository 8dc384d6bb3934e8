"""Triton kernels behind the fused layers: one operation a file.

Importing this package needs neither Triton nor a GPU. Importing one of its operations needs Triton,
and running one needs a CUDA device (or ``TRITON_INTERPRET=1``, which interprets the same source on
the CPU and is meant for tests). What is missing is told by :func:`missing` and raised by
:func:`require`.
"""

import importlib.util
import os

import torch

from gradwatch.errors import GradwatchError

__all__ = ["KernelUnavailableError", "missing", "require"]

# Once: Triton, too, reads both when a kernel's module is imported, and every call asks.
_INSTALLED = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"


class KernelUnavailableError(GradwatchError, RuntimeError):
    """A kernel was asked for where none can run: says what is missing and the way out."""


def missing(device: torch.device | str) -> str | None:
    """Say what keeps kernels from running on a device.

    Args:
        device: Where the tensors live.

    Returns:
        What is missing and how to get it, or ``None`` if kernels run there.

    >>> missing("meta")
    "kernels run on CUDA devices, not on 'meta': move model and batch with .to('cuda')"
    """
    kind = torch.device(device).type
    if not _INSTALLED:
        return (
            "Triton is not installed: CUDA builds of torch bring it along, else pip install triton"
        )
    if kind == "cuda" or (kind == "cpu" and _INTERPRETED):
        return None
    return f"kernels run on CUDA devices, not on {kind!r}: move model and batch with .to('cuda')"


def require(device: torch.device | str) -> None:
    """Raise unless kernels run on a device.

    Args:
        device: Where the tensors live.

    Raises:
        KernelUnavailableError: If Triton is not installed or the device is not one it compiles for.
    """
    if (reason := missing(device)) is not None:
        raise KernelUnavailableError(f"No fused kernel on {str(device)!r}: {reason}.")
