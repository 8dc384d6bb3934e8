"""What is done about a non-finite gradient, and how a step is classed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from gradwatch.errors import one_of, positive

if TYPE_CHECKING:
    from gradwatch.parts import Scene
    from gradwatch.readings import StepReading

Policy = Literal["raise", "skip", "warn"]
Status = Literal["healthy", "overflow", "fault", "bad_weights"]
POLICIES = ("raise", "skip", "warn")


@dataclass(frozen=True, kw_only=True)
class NonFiniteOptions:
    """Options of the non-finite monitor.

    Args:
        policy: ``"raise"`` stops the run before the weights take the gradient in;
            ``"skip"`` drops the gradients of that step (no momentum, no decay); ``"warn"``
            only tells.
        checkpoint: Under ``"raise"``, keep the intact weights in a checkpoint that resumes
            at the failing batch.
        replay: Run the failing micro-batch again to name layer and operation. Turn it off
            where the training step must not run twice; the answer then comes from the
            parameter gradients alone and says so.
        max_skips: Under ``"skip"``, stop after so many skipped steps in a row.
        scaler_patience: Steps skipped in a row by a gradient scaler before they are
            looked into and told; single overflows are expected and only counted.
        cooldown: Under ``"warn"``, optimizer steps between two replays of a lasting fault.

    Raises:
        ConfigurationError: If the policy is unknown or a number is not positive.
    """

    policy: Policy = "raise"
    checkpoint: bool = True
    replay: bool = True
    max_skips: int = 10
    scaler_patience: int = 10
    cooldown: int = 100

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        one_of("policy", self.policy, POLICIES)
        positive("max_skips", self.max_skips)
        positive("scaler_patience", self.scaler_patience)
        positive("cooldown", self.cooldown)


def classify(reading: StepReading, scene: Scene) -> Status:
    """Class a step, alike on every rank.

    Args:
        reading: The step's reading.
        scene: What the ranks agree on.

    Returns:
        ``"overflow"`` where a gradient scaler is at work and the loss is finite: it skips
        the step by itself and lowers its scale.
    """
    if not scene.trouble:
        return "healthy"
    if np.isinf(reading.parameters.weight_norm).any():
        return "bad_weights"
    if reading.loss_scale is not None and not scene.bad_loss:
        return "overflow"
    return "fault"
