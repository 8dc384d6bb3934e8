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
        cooldown: Under ``"warn"``, optimizer steps between two replays of a lasting fault;
            with ``explain_skips``, between two skips that are explained.
        explain_skips: Replay a step a gradient scaler skips and name the layer that
            overflowed, as an ``"info"`` finding; without it single overflows are only counted.
        bundle: Write the failing micro-batch, the weights and the random numbers beside the
            logs (``gradwatch_runs/step-N.pt``), for ``gradwatch replay`` on another machine.
        bundle_bytes: Most bytes of tensors in a bundle; beyond them the weights are left
            out, then the micro-batch, and the finding says so.
        max_bundles: Most bundles of a run.

    Raises:
        ConfigurationError: If the policy is unknown or a number is not positive.
    """

    policy: Policy = "raise"
    checkpoint: bool = True
    replay: bool = True
    max_skips: int = 10
    scaler_patience: int = 10
    cooldown: int = 100
    explain_skips: bool = False
    bundle: bool = True
    bundle_bytes: int = 256 << 20
    max_bundles: int = 10

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        one_of("policy", self.policy, POLICIES)
        positive("max_skips", self.max_skips)
        positive("scaler_patience", self.scaler_patience)
        positive("cooldown", self.cooldown)
        positive("bundle_bytes", self.bundle_bytes)
        positive("max_bundles", self.max_bundles)


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
