"""From two norms to a factor on the learning rate: pure functions over a small state.

SNR = ‖θ‖/‖g‖ of one parameter group (Frobenius norms). This ratio is the trust ratio of
LARS (You, Gitman & Ginsburg 2017, arXiv:1708.03888, eq. 6, without weight decay). Two rules
turn it into a factor, and they pull in opposite directions:

* ``inverse``: target/SNR. A gradient large against the weights *raises* the rate.
* ``proportional``: SNR/target. A gradient large against the weights *lowers* it, so that
  a plain gradient step has the size rate × ‖θ‖/target whatever the gradient's scale: LARS.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gradwatch.adaptive_lr.options import AdaptiveLearningRateOptions
from gradwatch.readings import StepReading


class GroupNorms(NamedTuple):
    """Norms of one parameter group: the weights, and the gradient that is applied to them."""

    weight_norm: float
    grad_norm: float


class RateState(NamedTuple):
    """Moving average of log SNR, not yet corrected for its start.

    Attributes:
        log_snr: Weighted sum of log SNR.
        weight: Sum of the weights; log_snr/weight is the average.
        steps: Measurements that went in.
    """

    log_snr: float
    weight: float
    steps: int


def snr(weight_norm: float, grad_norm: float, floor: float) -> float:
    """Give ‖θ‖/‖g‖, NaN where a norm is no measurement.

    Args:
        weight_norm: ‖θ‖ of the group.
        grad_norm: ‖g‖ of the gradient that is applied.
        floor: Norms at or below it are zero or noise.

    Returns:
        The ratio; NaN where a norm is zero, tiny or non-finite.

    Examples:
        >>> snr(5.0, 0.5, 1e-8), snr(0.0, 0.5, 1e-8), snr(5.0, float("inf"), 1e-8)
        (10.0, nan, nan)
    """
    measured = all(floor < norm < math.inf for norm in (weight_norm, grad_norm))
    return weight_norm / grad_norm if measured else math.nan


def init() -> RateState:
    """Start with no measurement."""
    return RateState(log_snr=0.0, weight=0.0, steps=0)


def update(
    snr: float, state: RateState, options: AdaptiveLearningRateOptions
) -> tuple[float, RateState]:
    """Take in one SNR and give the factor on the rate.

    The average runs over log SNR, so that half and double weigh the same. Over the
    warm-up the factor's exponent grows from 0 to 1.

    Args:
        snr: This step's ratio; NaN where it could not be measured.
        state: What earlier steps left.
        options: Rule, target, bounds, averaging and warm-up.

    Returns:
        The factor and the new state. Without a measurement the factor is 1 and the
        state stays as it was.

    Examples:
        >>> plain = AdaptiveLearningRateOptions(averaging=0.0, warmup_steps=0)
        >>> round(update(20.0, init(), plain)[0], 12)
        0.5
        >>> update(float("nan"), init(), plain)[0]
        1.0
    """
    if not 0 < snr < math.inf:
        return 1.0, state
    past, present = options.averaging, 1 - options.averaging
    moved = RateState(
        log_snr=past * state.log_snr + present * math.log(snr),
        weight=past * state.weight + present,
        steps=state.steps + 1,
    )
    distance = moved.log_snr / moved.weight - math.log(options.target)
    sign = {"inverse": -1.0, "proportional": 1.0}[options.rule]
    strength = min(1.0, state.steps / options.warmup_steps) if options.warmup_steps else 1.0
    return _bounded_exp(sign * strength * distance, options.bounds), moved


def _bounded_exp(exponent: float, bounds: tuple[float, float]) -> float:
    # Bounded before the exponential: an SNR of 1e300 must not overflow on its way to a bound.
    low, high = bounds
    if exponent <= math.log(low):
        return low
    return high if exponent >= math.log(high) else math.exp(exponent)


def norms_by_group(reading: StepReading, *, exclude_1d: bool = True) -> list[GroupNorms]:
    """Sum the norms of a reading per parameter group.

    Counted are parameters that have a gradient. Where norm clipping is known to shrink the
    gradient, the norm is that of the clipped one: it is what the optimizer applies.

    Args:
        reading: One optimizer step.
        exclude_1d: Leave parameters with fewer than two dimensions out.

    Returns:
        One entry per group up to the last that has a parameter; zeros where none counts.
    """
    parameters = reading.parameters
    if not parameters.group.size:
        return []
    counted = parameters.has_grad & ((parameters.ndim > 1) | (not exclude_1d))
    groups, count = parameters.group[counted], int(parameters.group.max()) + 1
    weights, grads = (
        np.sqrt(np.bincount(groups, weights=norm[counted] ** 2, minlength=count))
        for norm in (parameters.weight_norm, parameters.grad_norm)
    )
    applied = clip_coefficient(reading.grad_norm, reading.grad_norm_clipped)
    return [
        GroupNorms(weight, grad * applied)
        for weight, grad in zip(weights.tolist(), grads.tolist(), strict=True)
    ]


def clip_coefficient(grad_norm: float, clipped: float | None) -> float:
    """Give the share of the gradient that clipping leaves; 1 where nothing is known.

    Examples:
        >>> clip_coefficient(4.0, 1.0), clip_coefficient(4.0, None)
        (0.25, 1.0)
    """
    known = clipped is not None and 0 < grad_norm < math.inf and math.isfinite(clipped)
    return clipped / grad_norm if known and clipped is not None else 1.0
