"""From options to parts: the same choice for the callback and the plain loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from gradwatch.adaptive_lr import AdaptiveLearningRate, AdaptiveLearningRateOptions
from gradwatch.errors import ConfigurationError
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.part import FusedBackward
from gradwatch.gradient_flow import GradientFlow, GradientFlowOptions
from gradwatch.graph import GraphOptions, GraphWatch
from gradwatch.memory import MemoryDelta, MemoryOptions
from gradwatch.non_finite.monitor import NonFinite
from gradwatch.non_finite.policy import NonFiniteOptions
from gradwatch.roofline import RooflineOptions
from gradwatch.roofline.part import Roofline
from gradwatch.symptoms import SymptomWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwatch.parts import Part
    from gradwatch.sinks.protocol import Sink

Options = TypeVar("Options")


def choose_parts(
    *,
    non_finite: NonFiniteOptions | bool,
    gradient_flow: GradientFlowOptions | bool,
    memory: MemoryOptions | bool,
    graph: GraphOptions | bool,
    symptoms: bool,
    adaptive_lr: AdaptiveLearningRateOptions | bool,
    roofline: RooflineOptions | bool,
    fused: FusedBackwardOptions | bool,
) -> list[Part]:
    """Make the parts that are wanted, in the order they act.

    Each argument is the part's options, True for its defaults, False to leave it out.

    Raises:
        ConfigurationError: If an argument is neither.
    """
    parts = (
        _part(NonFinite, NonFiniteOptions, non_finite),
        _part(GradientFlow, GradientFlowOptions, gradient_flow),
        _part(AdaptiveLearningRate, AdaptiveLearningRateOptions, adaptive_lr),
        _part(MemoryDelta, MemoryOptions, memory),
        _part(partial(GraphWatch, beside_flow=gradient_flow is not False), GraphOptions, graph),
        _part(Roofline, RooflineOptions, roofline),
        SymptomWatch() if symptoms else None,
        _fused(fused),
    )
    return [part for part in parts if part is not None]


def _fused(fused: FusedBackwardOptions | bool) -> Part | None:  # noqa: FBT001 - the user's own value
    """Advise by default, and only where there is a device that the kernels are made for."""
    if fused is True:
        advice = FusedBackwardOptions(mode="advise")
        return FusedBackward(advice) if torch.cuda.is_available() else None
    return _part(FusedBackward, FusedBackwardOptions, fused)


def checked(
    model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], sinks: Sequence[Sink]
) -> list[Optimizer]:
    """Refuse what is no model, no optimizer or no sequence of sinks.

    Args:
        model: What is to be watched.
        optimizer: Its optimizer, or several.
        sinks: The user's sinks.

    Returns:
        The optimizers.

    Raises:
        ConfigurationError: If one of them is something else.
    """
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    if isinstance(model, torch.jit._script.RecursiveScriptModule):  # noqa: SLF001 - nowhere else
        raise ConfigurationError(
            "a scripted model takes no hooks: watch the module before torch.jit.script, or put "
            "it into a torch.nn.Module of its own"
        )
    if not isinstance(sinks, Sequence):
        raise ConfigurationError(f"sinks must be a sequence; got {type(sinks).__name__}")
    optimizers: list[Any] = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    strange = [type(own).__name__ for own in optimizers if not isinstance(own, Optimizer)]
    if strange or not optimizers:
        got = ", ".join(strange) or "none"
        raise ConfigurationError(f"optimizer must be one or several torch optimizers; got {got}")
    return optimizers


def _part(
    make: Callable[[Options | None], Part],
    kind: type[Options],
    options: Options | bool,  # noqa: FBT001 - the user's own value
) -> Part | None:
    if isinstance(options, bool):
        return make(None) if options else None
    if not isinstance(options, kind):
        raise ConfigurationError(f"expected {kind.__name__}(...), True or False; got {options!r}")
    return make(options)
