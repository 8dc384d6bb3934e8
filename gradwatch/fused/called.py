"""Losses that are called as functions where no module's forward can be swapped, and the way out."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gradwatch.fused.operation import Candidate
from gradwatch.fused.providers import Provider
from gradwatch.fused.refusal import Refusal
from gradwatch.fused.site import Site
from gradwatch.layers import clean_name

__all__ = ["CalledLoss", "LossesNoted", "out_of_reach"]

FUNCTIONS = (F.cross_entropy, F.nll_loss)
KINDS = ("cross-entropy", "CrossEntropyLoss")
WANTED = ("weight", "ignore_index", "reduction", "label_smoothing")
# What every call of a module goes through.
CALL = nn.Module._call_impl.__code__  # noqa: SLF001


class CalledLoss(NamedTuple):
    """A call of ``cross_entropy`` or ``nll_loss``.

    Attributes:
        module: The innermost module of the model that was being called; ``None`` outside all.
        function: Name of the function that called it.
        inputs: Stand-ins for logits and targets: their types and shapes, without memory.
        options: The call's other arguments, by name.
    """

    module: nn.Module | None
    function: str
    inputs: tuple[Tensor, Tensor]
    options: Mapping[str, Any]


class LossesNoted(TorchFunctionMode):
    """Notes each loss that is called as a function, while it is entered; torch's modules are known.

    Args:
        model: The model.

    Attributes:
        calls: Those that were called, in order.
    """

    def __init__(self, model: nn.Module) -> None:
        """Begin with none."""
        super().__init__()
        self._modules = set(model.modules())
        self.calls: list[CalledLoss] = []

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - any function of torch's
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever it returns
        """Run a function, and note it down where it is a loss."""
        result = func(*args, **(kwargs or {}))
        if func in FUNCTIONS and not torch.compiler.is_compiling():
            self._note(func, args, kwargs or {})
        return result

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:  # noqa: ANN401
        frames = list(_frames())
        running = (each for each in map(_called_module, frames) if each in self._modules)
        module = next(running, None)
        if module is not None and type(module).__module__.startswith("torch.nn.modules."):
            return
        names = (each.f_code.co_name for each in frames if not _is_torchs(each))
        given = inspect.signature(func).bind(*args, **kwargs).arguments
        inputs = _stand_in(given.pop("input")), _stand_in(given.pop("target"))
        self.calls.append(CalledLoss(module, next(names, ""), inputs, given))


def out_of_reach(
    calls: Sequence[CalledLoss],
    model: nn.Module,
    told: Sequence[Candidate | Refusal],
    providers: Sequence[Provider],
    min_elements: int,
) -> list[Refusal]:
    """Say of each loss that is called as a function where nothing can be swapped what to do.

    Args:
        calls: The losses that were called.
        model: The model.
        told: What is told anyway.
        providers: Who may offer something.
        min_elements: Logits smaller than this are not spoken of.

    Returns:
        A refusal for each place and each provider that knows something of such a loss.
    """
    names = {each: clean_name(name) for name, each in model.named_modules()}
    reached = {each.layer for each in told if any(kind in each.kind for kind in KINDS)}
    found: dict[Refusal, None] = {}
    for call, provider in itertools.product(calls, providers):
        layer = names[call.module or model]
        if call.inputs[0].numel() >= min_elements and not _under(layer, call, reached):
            reason = _reason(call, provider)
            if reason:
                found[Refusal(layer, "cross-entropy", provider.name, reason)] = None
    return list(found)


def _reason(call: CalledLoss, provider: Provider) -> str:
    options = {name: own for name, own in call.options.items() if name in WANTED}
    site = Site("module", (nn.CrossEntropyLoss(**options),), call.inputs)
    offer = provider.propose(site)
    if offer is None or isinstance(offer, str):
        return offer or ""
    return (
        f"called as a function in {call.function}: "
        "as nn.CrossEntropyLoss() kept on the model it could be tried"
    )


def _under(layer: str, call: CalledLoss, reached: set[str]) -> bool:
    """Tell whether a call stands in a module of which something is told, or in a child of one."""
    if call.module is None:
        return False
    return any(layer == each or layer.startswith(f"{each}.") for each in reached)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the caller's
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_torchs(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name == __name__ or name.partition(".")[0] == "torch"


def _called_module(frame: FrameType) -> nn.Module | None:
    if frame.f_code is not CALL:
        return None
    module: nn.Module = frame.f_locals["self"]
    return module


def _stand_in(value: Tensor) -> Tensor:
    return torch.empty((), dtype=value.dtype, device=value.device).expand(value.shape)
