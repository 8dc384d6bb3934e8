"""What a user may settle about the adaptive learning rate; nonsense is refused early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gradwatch.errors import ConfigurationError, one_of, positive

Rule = Literal["inverse", "proportional"]


@dataclass(frozen=True, kw_only=True)
class AdaptiveLearningRateOptions:
    """Options of the adaptive learning rate.

    Args:
        rule: ``"inverse"`` multiplies the rate by target/SNR, ``"proportional"`` by SNR/target.
        target: SNR at which the rate stays as scheduled.
        bounds: Lowest and highest factor on the scheduled rate.
        averaging: Share of the past in the moving average of log SNR; 0 takes each step alone.
        warmup_steps: Steps over which the factor grows from 1 to its full strength.
        exclude_1d: Leave biases and normalisation parameters out of both norms.
        floor: Norms at or below it are noise: the rate stays as scheduled.
        low: SNR below which a finding says that the update tears the weights.
        high: SNR above which a finding says that the update does next to nothing.
        patience: Steps in a row beyond ``low`` or ``high`` before the finding is told.
        cooldown_steps: Steps before the same group is told of again.

    Raises:
        ConfigurationError: If an option cannot be meant.

    Examples:
        >>> AdaptiveLearningRateOptions(rule="proportional", bounds=(0.5, 2.0)).target
        10.0
    """

    rule: Rule = "inverse"
    target: float = 10.0
    bounds: tuple[float, float] = (0.1, 2.0)
    averaging: float = 0.9
    warmup_steps: int = 100
    exclude_1d: bool = True
    floor: float = 1e-8
    low: float = 1.0
    high: float = 100.0
    patience: int = 20
    cooldown_steps: int = 1000

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, with the option's name."""
        one_of("rule", self.rule, get_args(Rule))
        for name in ("target", "floor", "low", "high", "patience", "cooldown_steps"):
            positive(name, getattr(self, name))
        _ascending("bounds", self.bounds)
        _ascending("low and high", (self.low, self.high))
        if not 0 <= self.averaging < 1:
            message = f"averaging must lie in [0, 1): 0 is no average; got {self.averaging!r}"
            raise ConfigurationError(message)
        if self.warmup_steps < 0:
            message = f"warmup_steps must be 0 (no warm-up) or more; got {self.warmup_steps!r}"
            raise ConfigurationError(message)


def _ascending(option: str, pair: Sequence[float]) -> None:
    if len(pair) != 2 or not 0 < pair[0] <= pair[1] < float("inf"):  # noqa: PLR2004 - a pair
        message = f"{option} must be two positive, finite numbers, the smaller first; got {pair!r}"
        raise ConfigurationError(message)
