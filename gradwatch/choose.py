"""From options to parts: the same choice for the callback and the plain loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gradwatch.adaptive_lr import AdaptiveLearningRate
from gradwatch.gradient_flow import GradientFlow
from gradwatch.memory import MemoryDelta
from gradwatch.non_finite.monitor import NonFinite

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwatch.adaptive_lr import AdaptiveLearningRateOptions
    from gradwatch.gradient_flow import GradientFlowOptions
    from gradwatch.memory import MemoryOptions
    from gradwatch.non_finite.policy import NonFiniteOptions
    from gradwatch.parts import Part

Options = TypeVar("Options")


def choose_parts(
    *,
    non_finite: NonFiniteOptions | bool,
    gradient_flow: GradientFlowOptions | bool,
    memory: MemoryOptions | bool,
    adaptive_lr: AdaptiveLearningRateOptions | bool,
) -> list[Part]:
    """Make the parts that are wanted, in the order they act.

    Each argument is the part's options, True for its defaults, False to leave it out.
    """
    parts = (
        _part(NonFinite, non_finite),
        _part(GradientFlow, gradient_flow),
        _part(AdaptiveLearningRate, adaptive_lr),
        _part(MemoryDelta, memory),
    )
    return [part for part in parts if part is not None]


def _part(make: Callable[[Options | None], Part], options: Options | bool) -> Part | None:  # noqa: FBT001 - the user's own value
    if isinstance(options, bool):
        return make(None) if options else None
    return make(options)
