"""What one optimizer step measured, on the host: plain numbers, no tensors.

Shapes: P parameters of the optimizer that steps, L layers of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class ParameterReading:
    """Norms per parameter of one optimizer, in the order of its groups.

    Attributes:
        names: (P,) parameter names as the user wrote them.
        layer: (P,) index into ``layers``.
        group: (P,) index of the optimizer's parameter group.
        ndim: (P,) number of dimensions.
        has_grad: (P,) False where the gradient is ``None`` (or integer, or uninitialised).
        grad_norm: (P,) Frobenius norm of the accumulated, unscaled, pre-clip gradient;
            inf where it holds NaN or Inf; NaN where there is none, or where the true
            number could not be had this step.
        weight_norm: (P,) Frobenius norm of the parameter before the update, inf where it
            holds NaN or Inf. Measured on recorded steps, where gradients are bad, and on
            every step where the rate follows it; in between the last norm stands.
    """

    names: tuple[str, ...]
    layer: IntArray
    group: IntArray
    ndim: IntArray
    has_grad: BoolArray
    grad_norm: FloatArray
    weight_norm: FloatArray


@dataclass(frozen=True, kw_only=True)
class FlowReading:
    """The same per layer, in execution order (registration order until it is known).

    Attributes:
        layers: (L,) layer names.
        grad_norm: (L,) norm over the layer's parameters; inf where a gradient holds NaN
            or Inf; NaN where there is no gradient.
        weight_norm: (L,) norm over the layer's parameters before the update.
        has_grad: (L,) True where at least one parameter has a gradient.
        frozen: (L,) True where no parameter of the layer requires a gradient.
        called: (L,) True where the first step's forward called the layer; None if unknown.
        update_ratio: (L,) ‖θ′−θ‖/‖θ‖ of this step's true update; logging steps only.
        zero_fraction: (L,) share of exactly zero gradient entries; logging steps only.
        act_grad: (L,) norm of the gradient at the layer's outputs, over all calls of the
            step (root of the summed squares); sampled steps only, NaN where blind.
    """

    layers: tuple[str, ...]
    grad_norm: FloatArray
    weight_norm: FloatArray
    has_grad: BoolArray
    frozen: BoolArray
    called: BoolArray | None = None
    update_ratio: FloatArray | None = None
    zero_fraction: FloatArray | None = None
    act_grad: FloatArray | None = None


@dataclass(frozen=True, kw_only=True)
class StepReading:
    """Everything the one transfer of an optimizer step brought to the host.

    Attributes:
        step: Optimizer steps done before this one (``trainer.global_step``).
        log_step: The x axis of the logger (batches that stepped).
        optimizer: ``""`` with one optimizer, else ``"opt0"``, ``"opt1"``, ...
        parameters: Norms per parameter.
        flow: Norms per layer.
        grad_norm: Total gradient norm before clipping (unscaled).
        grad_norm_clipped: Total norm after clipping; None where nothing clips or it is unknown.
        losses: Unscaled loss of each micro-batch of the step, in order.
        loss_scale: The gradient scaler's scale; None without one.
        non_finite: (N,) names of the parameters whose gradient holds NaN or Inf.
        stale: Layer names with their gradient norm, where a gradient was neither None nor
            zero when the first backward of the step began.
        cuts: Modules of the first step whose input needed a gradient and whose output did
            not, innermost first.
        logged: True where this step is one of those that sinks record.
    """

    step: int
    log_step: int
    optimizer: str
    parameters: ParameterReading
    flow: FlowReading
    grad_norm: float
    grad_norm_clipped: float | None = None
    losses: tuple[float, ...] = ()
    loss_scale: float | None = None
    non_finite: tuple[str, ...] = ()
    stale: Mapping[str, float] = field(default_factory=dict)
    cuts: tuple[str, ...] = ()
    logged: bool = False


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What the sinks are handed for a recorded step, complete with what the update did.

    Attributes:
        step: Optimizer step.
        log_step: The x axis of the logger.
        scalars: Final metric key → value: totals, rates, memory. Finite values only.
        flow: Per-layer profile of the step, None where gradient flow is not watched.
    """

    step: int
    log_step: int
    scalars: Mapping[str, float]
    flow: FlowReading | None = None


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What of the model is seen, and why not more.

    Attributes:
        layer: Layer name.
        state: ``"hooked"``, ``"parameter gradients only"`` or ``"blind"``.
        reason: Why it is not hooked; empty where it is.
    """

    layer: str
    state: str
    reason: str = ""
