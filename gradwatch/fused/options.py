"""How fused layers are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gradwatch.errors import ConfigurationError, one_of, positive
from gradwatch.fused.providers import PROVIDERS, Provider, resolve

__all__ = ["FusedBackwardOptions", "Mode"]

Mode = Literal["auto", "advise", "force"]
# 1 - 2 / 2^8 > 0.99: as likely as that the median lies between their smallest and largest ratio.
FEWEST_PAIRS = 8


@dataclass(frozen=True, kw_only=True)
class FusedBackwardOptions:
    """When fused layers are tried, and when they are kept.

    Attributes:
        mode: ``"auto"`` tries and keeps what is right and faster, ``"advise"`` says what could
            be tried, ``"force"`` keeps what is right without asking whether it is faster.
        after_steps: Optimizer steps before the trial: kernels, caches and clocks are warm by then.
        providers: Who may offer something, by name (``"gradwatch"``, ``"torch"``, ``"liger"``) or
            providers of your own; two may compete for a layer.
        min_elements: Inputs smaller than this are left alone: a launch costs more than it saves.
        min_gain: Share of the step's time that a change has to gain.
        profile: Profile a few runs first, so that layers bound by arithmetic are left alone.
        pairs: Pairs of measurements before the first look, at least 8; undecided ones are measured
            on.
        most_pairs: Pairs after which undecided means rolled back.
        compile_seconds: How long the first call of a fused function may take.
        regression_steps: Steps of the last check, on the weights, which are put back.
        channels_last: Try that memory format on models that convolve.
        max_seconds: How long the trial may last; what is not tried by then stays as it is.

    Raises:
        ConfigurationError: If an option cannot be meant.
    """

    mode: Mode = "auto"
    after_steps: int = 10
    providers: Sequence[str | Provider] = PROVIDERS
    min_elements: int = 1 << 20
    min_gain: float = 0.002
    profile: bool = True
    pairs: int = 12
    most_pairs: int = 48
    compile_seconds: float = 120.0
    regression_steps: int = 4
    channels_last: bool = True
    max_seconds: float = 300.0

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        one_of("mode", self.mode, get_args(Mode))
        for option in ("min_elements", "pairs", "most_pairs", "compile_seconds",
                       "regression_steps", "max_seconds"):  # fmt: skip
            positive(option, getattr(self, option))
        if self.after_steps < 0 or not 0 <= self.min_gain < 1:
            raise ConfigurationError(
                f"after_steps must not be negative and min_gain lie in [0, 1); "
                f"got {self.after_steps} and {self.min_gain}"
            )
        if self.pairs < FEWEST_PAIRS:
            raise ConfigurationError(
                f"pairs must be at least {FEWEST_PAIRS}: the smallest and the largest ratio of "
                f"fewer are no 99 % interval; got {self.pairs}"
            )
        resolve(self.providers)
