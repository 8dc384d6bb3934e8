"""Scripted modules in a model: no hook sees them, so that what they hold has to be looked for."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from gradwatch.fused.refusal import Refusal
from gradwatch.layers import clean_name

__all__ = ["SCRIPTED", "scripted_parts"]

SCRIPTED = "it is scripted: its forward is not Python's"


def scripted_parts(model: nn.Module) -> Iterator[Refusal]:
    """Refuse each scripted module of a model, the outermost where one holds another.

    Args:
        model: The model.

    >>> list(scripted_parts(nn.Linear(2, 2)))
    []
    """
    within: set[nn.Module] = set()
    for name, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule) or module in within:
            continue
        within.update(module.modules())
        yield Refusal(clean_name(name), str(module.original_name), "", SCRIPTED)
