"""What can be set about gradient flow."""

from __future__ import annotations

from dataclasses import dataclass

from gradwatch.errors import ConfigurationError, positive


@dataclass(frozen=True, kw_only=True)
class GradientFlowOptions:
    """Options of the gradient-flow rules; the defaults suit an ordinary training.

    Args:
        layers: Shell patterns of the layers to judge, such as ``("encoder.*",)``; all by default.
        patience: Optimizer steps in a row before a layer is called vanishing, dead or unused.
        vanishing: Gradient norm of a layer over that of the strongest layers below which it
            counts as vanishing. The default marks the cliff from 1e-3 to 1e-8.
        exploding: Growth of a gradient norm over a run of rising steps that counts as exploding.
        cooldown: Optimizer steps before the same rule speaks about the same layer again.

    Raises:
        ConfigurationError: If a number is out of its range.
    """

    layers: tuple[str, ...] = ("*",)
    patience: int = 5
    vanishing: float = 1e-5
    exploding: float = 100.0
    cooldown: int = 500

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        positive("patience", self.patience)
        positive("cooldown", self.cooldown)
        given: object = self.layers
        if isinstance(given, str) or not self.layers:
            message = f"layers takes a sequence of patterns such as ('*',); got {self.layers!r}"
            raise ConfigurationError(message)
        if not 0 < self.vanishing < 1:
            message = f"vanishing is a ratio between 0 and 1; got {self.vanishing!r}"
            raise ConfigurationError(message)
        if not self.exploding > 1:
            message = f"exploding is a growth factor above 1; got {self.exploding!r}"
            raise ConfigurationError(message)
