"""A learning rate that follows the ratio of weights to gradients."""

from gradwatch.adaptive_lr.options import AdaptiveLearningRateOptions
from gradwatch.adaptive_lr.part import AdaptiveLearningRate
from gradwatch.adaptive_lr.rule import (
    GroupNorms,
    RateState,
    clip_coefficient,
    init,
    norms_by_group,
    snr,
    update,
)
from gradwatch.adaptive_lr.scaling import PendingRates, refuse, scale_rates

__all__ = [
    "AdaptiveLearningRate",
    "AdaptiveLearningRateOptions",
    "GroupNorms",
    "PendingRates",
    "RateState",
    "clip_coefficient",
    "init",
    "norms_by_group",
    "refuse",
    "scale_rates",
    "snr",
    "update",
]
