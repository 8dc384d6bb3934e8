"""Put forwards on modules and take them off: any set of swaps, with one way back."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType

import torch
from torch import nn
from torch.nn.utils import parametrize

from gradwatch.fused.guards import OURS, carries_hook, replaced
from gradwatch.fused.operation import Candidate
from gradwatch.fused.scripted import SCRIPTED
from gradwatch.undo import Undo, patch_instance

__all__ = ["Wardrobe", "refuse_site", "refuse_skipped"]


class Wardrobe:
    """The swaps a model wears.

    Attributes:
        worn: Those it wears now.
    """

    def __init__(self) -> None:
        """Begin with the stock model."""
        self.worn: tuple[Candidate, ...] = ()
        self._undo = Undo()

    def wear(self, candidates: Iterable[Candidate]) -> None:
        """Take everything off, and put these on.

        The instance is patched, so every place that holds the module runs the new forward;
        parameters, names, hooks and flags are not touched.

        Args:
            candidates: At most one a module.
        """
        self._undo()
        self.worn = tuple(candidates)
        for each in self.worn:
            bound = MethodType(each.forward(), each.module)
            OURS.add(bound.__func__)
            self._undo.add(patch_instance(each.module, "forward", bound))

    def take_off(self) -> None:
        """Go back to the stock model; safe to call twice."""
        self.wear(())


def refuse_site(module: nn.Module) -> str | None:
    """Say why a module's forward must not be replaced, whoever offers what.

    Args:
        module: The module.

    Returns:
        The reason, or ``None``.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return SCRIPTED
    if parametrize.is_parametrized(module):
        return "it is parametrized: its weight is computed anew at each access"
    if replaced(module):
        return "its forward has been replaced already"
    if any(each._compiled_call_impl is not None for each in module.modules()):
        return "it is compiled: torch.compile fuses it on its own"
    return None


def refuse_skipped(module: nn.Module, path: str) -> str | None:
    """Say why a module must be called, so that nothing can stand for it.

    Args:
        module: The module.
        path: How it is told.

    Returns:
        The reason, or ``None``.
    """
    if carries_hook(module):
        return f"{path} carries a hook, which would not fire"
    reason = refuse_site(module)
    return None if reason is None else f"{path}: {reason}"
