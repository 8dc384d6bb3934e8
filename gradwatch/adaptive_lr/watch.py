"""Say when the SNR of a group stays where an update tears the weights, or does nothing."""

from __future__ import annotations

from typing import NamedTuple

from gradwatch.adaptive_lr.options import AdaptiveLearningRateOptions
from gradwatch.adaptive_lr.rule import GroupNorms
from gradwatch.findings import OPTIMIZER, Finding, Severity


class Streak(NamedTuple):
    """Steps in a row on one side, and how long to keep quiet.

    Attributes:
        low: Steps in a row with an SNR under the low limit.
        high: Steps in a row with an SNR over the high limit.
        quiet_until: First optimizer step at which a finding may be told again.
    """

    low: int = 0
    high: int = 0
    quiet_until: int = 0


class _Verdict(NamedTuple):
    rule: str
    severity: Severity
    summary: str
    cause: str
    remedy: str


_VERDICTS = {
    "low": _Verdict(
        "snr_low",
        "warning",
        "gradients outweigh the weights: the update tears them",
        "exploding gradients, a rate that has driven the weights off, or weights that start tiny",
        "clip the gradient norm, lower the rate or check the initialisation",
    ),
    "high": _Verdict(
        "snr_high",
        "info",
        "weights dwarf the gradients: a plain gradient step does next to nothing",
        "a converged or vanishing gradient, a loss scaled down, or weights that have grown large;"
        " usual and harmless under optimizers that normalise the gradient, such as Adam",
        "with SGD raise the rate; otherwise look at the gradient flow",
    ),
}


def observe(
    snr: float, streak: Streak, step: int, options: AdaptiveLearningRateOptions
) -> tuple[str | None, Streak]:
    """Count one step and say which side, if any, is to be told now.

    Args:
        snr: This step's SNR; NaN ends both streaks.
        streak: What earlier steps left.
        step: Optimizer step.
        options: Limits, patience and cooldown.

    Returns:
        ``"low"``, ``"high"`` or None, and the new streak.

    Examples:
        >>> options = AdaptiveLearningRateOptions(patience=2)
        >>> side, streak = observe(0.5, Streak(), 7, options)
        >>> side, observe(0.5, streak, 8, options)[0]
        (None, 'low')
    """
    low = streak.low + 1 if snr < options.low else 0
    high = streak.high + 1 if snr > options.high else 0
    # A step from before the last telling belongs to another run: there it is not quiet.
    quiet = 0 < streak.quiet_until - step <= options.cooldown_steps
    told = max(low, high) >= options.patience and not quiet
    quiet_until = step + options.cooldown_steps if told else streak.quiet_until
    side = ("low" if low else "high") if told else None
    return side, Streak(low, high, quiet_until)


def tell(side: str, place: str, norms: GroupNorms, streak: Streak, step: int) -> Finding:
    """Put one side into words.

    Args:
        side: ``"low"`` or ``"high"``.
        place: Which group of which optimizer.
        norms: This step's norms of the group.
        streak: Counts the steps in a row.
        step: Optimizer step.
    """
    verdict = _VERDICTS[side]
    return Finding(
        rule=verdict.rule,
        layer=OPTIMIZER,
        severity=verdict.severity,
        step=step,
        summary=f"{verdict.summary} ({place})",
        evidence={
            "snr": norms.weight_norm / norms.grad_norm,
            "weight_norm": norms.weight_norm,
            "grad_norm": norms.grad_norm,
            "steps_in_a_row": max(streak.low, streak.high),
        },
        cause=verdict.cause,
        remedy=verdict.remedy,
    )
