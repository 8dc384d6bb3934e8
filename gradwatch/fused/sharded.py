"""Models whose weights lie in pieces: no layer of theirs can be tried by itself."""

from __future__ import annotations

from torch import nn
from torch.distributed.tensor import DTensor

__all__ = ["refuse_model"]

# What FSDP 1 and DeepSpeed's ZeRO 3 leave on a parameter that they have cut up.
MARKS = ("_fsdp_flattened", "ds_id")
SHARDED = (
    "its parameters are sharded (FSDP, tensor parallelism, ZeRO 3): a layer has its weights only "
    "while it runs, and its function cannot be proved on a copy of it; DistributedDataParallel, "
    "which keeps them whole, can be tried"
)


def refuse_model(model: nn.Module) -> str:
    """Say why nothing can be tried on a model at all; empty where something can.

    Args:
        model: The model.

    >>> refuse_model(nn.Linear(2, 2))
    ''
    """
    return SHARDED if any(map(_is_a_piece, model.parameters())) else ""


def _is_a_piece(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, DTensor) or any(mark in vars(parameter) for mark in MARKS)
