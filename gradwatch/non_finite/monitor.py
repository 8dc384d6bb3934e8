"""The non-finite part: the sentinel of every optimizer step and what follows when it trips."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gradwatch.findings import LOSS, OPTIMIZER, Finding
from gradwatch.gradient_flow.growth import Growth, GrowthState, growth, update_growth
from gradwatch.non_finite.describe import finding_of
from gradwatch.non_finite.policy import NonFiniteOptions, Policy, classify
from gradwatch.parts import Action, Needs, Part, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradwatch.parts import Answer, Scene
    from gradwatch.readings import StepReading

ACTIONS: dict[Policy, Action] = {"raise": "raise", "skip": "skip", "warn": "proceed"}
DIVERGED = 100.0
DIVERGED_STEPS = 4


class NonFinite(Part):
    """Stop, skip or tell before the weights take a non-finite gradient in.

    Args:
        options: Policy and patience.
    """

    name: ClassVar[str] = "non_finite"

    def __init__(self, options: NonFiniteOptions | None = None) -> None:
        """Start with nothing seen."""
        self.options = options or NonFiniteOptions()
        self.needs = Needs(replay=self.options.replay)
        self._bad_steps = 0
        self._skipped = 0
        self._in_row: dict[str, int] = {}
        self._told_at: dict[str, int] = {}
        self._scale: float | None = None
        self._growth: dict[str, GrowthState] = {}
        self._bundles = self.options.max_bundles if self.options.bundle else 0
        self._skip_told_at: int | None = None
        self._taken_in: int | None = None

    def guard(self, reading: StepReading, scene: Scene) -> Verdict:
        """Class the step and act by the policy; entered alike by all ranks."""
        status = classify(reading, scene)
        self._scale = reading.loss_scale
        if status == "healthy":
            self._in_row[reading.optimizer], self._taken_in = 0, None
            before = self._growth.get(reading.optimizer, GrowthState())
            self._growth[reading.optimizer] = update_growth(before, reading.step, reading.grad_norm)
            return Verdict()
        self._bad_steps += 1
        self._in_row[reading.optimizer] = self._in_row.get(reading.optimizer, 0) + 1
        if status == "overflow":
            return self._overflow(reading, scene)
        try:
            return self._fault(reading, scene, weights=status == "bad_weights")
        except Exception as error:  # noqa: BLE001 - the policy holds, explained or not
            return Verdict(self._action(reading), (_unexplained(reading, error),))

    def judge(self, reading: StepReading) -> tuple[Finding, ...]:  # noqa: ARG002 - guard said it
        """Add nothing: the guard has spoken."""
        return ()

    def _overflow(self, reading: StepReading, scene: Scene) -> Verdict:
        """Count a scaler's skip; look into the k-th in a row without the scale."""
        self._skipped += 1
        in_row = self._in_row[reading.optimizer]
        if in_row % self.options.scaler_patience:
            return self._explained_skip(reading, scene)
        answer = scene.investigate(unscaled=True)
        skips = {"skipped_in_a_row": in_row, "loss_scale": reading.loss_scale or 0.0}
        if answer.blame.kind:
            finding = _finding(answer, reading)
            finding = replace(
                finding,
                evidence={**finding.evidence, **skips},
                summary=f"{finding.summary}; the scaler has skipped {in_row} steps in a row",
            )
            return Verdict("proceed", (self._kept(finding, scene),))
        return Verdict("proceed", (_scale_too_high(reading, skips),))

    def _explained_skip(self, reading: StepReading, scene: Scene) -> Verdict:
        """Name the layer that overflowed, where that is wanted and not just told."""
        told = self._skip_told_at
        rests = told is not None and reading.step - told < self.options.cooldown
        if not self.options.explain_skips or rests:
            return Verdict()
        self._skip_told_at = reading.step
        finding = _finding(scene.investigate(), reading)
        finding = replace(
            finding,
            rule="loss_scale",
            severity="info",
            summary=f"{finding.summary}; the scaler skips this step and lowers its scale",
            evidence={**finding.evidence, "loss_scale": reading.loss_scale or 0.0},
        )
        return Verdict("proceed", (finding,))

    def _kept(self, finding: Finding, scene: Scene) -> Finding:
        """Write a bundle, as long as there is room for one, and say where."""
        if not self._bundles:
            return finding
        kept = scene.keep(finding, max_bytes=self.options.bundle_bytes)
        # What fails once is told once: a disk that is full stays full.
        self._bundles = 0 if kept.failed else self._bundles - bool(kept.words)
        if not kept.words:
            return finding
        told = {"bundle": kept.words, "left out of it": kept.without}
        told = {name: words for name, words in told.items() if words}
        return replace(finding, evidence={**finding.evidence, **told})

    def _fault(self, reading: StepReading, scene: Scene, *, weights: bool) -> Verdict:
        warns = self.options.policy == "warn"
        if warns and self._taken_in is None and reading.non_finite and not weights:
            self._taken_in = None if _scaler_skips(reading) else reading.step
        told = self._told_at.get(reading.optimizer)
        rests = told is not None and 0 <= reading.step - told < self.options.cooldown
        if warns and rests:
            return Verdict()
        self._told_at[reading.optimizer] = reading.step
        finding = self._bad_weights(reading) if weights else self._explained(reading, scene)
        finding = replace(finding, summary=f"{finding.summary}{self._consequence(reading)}")
        finding = finding if weights else self._kept(finding, scene)
        action = self._action(reading)
        if action == "skip" or (action == "proceed" and _scaler_skips(reading)):
            self._skipped += 1
        return Verdict(action, (finding,))

    def _action(self, reading: StepReading) -> Action:
        policy = self.options.policy
        if policy == "skip" and self._in_row[reading.optimizer] > self.options.max_skips:
            return "raise"
        if policy == "skip" and reading.loss_scale is not None:
            return "proceed"
        return ACTIONS[policy]

    def _consequence(self, reading: StepReading) -> str:
        finite = "; the gradients are finite" if not reading.non_finite else ""
        told = {
            "raise": "stopped before the update",
            "proceed": "the update goes on (policy 'warn')",
            "skip": f"the update is skipped ({self._in_row[reading.optimizer]} in a row)",
        }
        action = self._action(reading)
        if action == "proceed" and _scaler_skips(reading):
            action = "skip"
        return f"{finite}; {told[action]}"

    def _explained(self, reading: StepReading, scene: Scene) -> Finding:
        finding = _finding(scene.investigate(), reading)
        grown = growth(self._growth.get(reading.optimizer, GrowthState()))
        if grown and grown.exceeds(DIVERGED) and grown.steps >= DIVERGED_STEPS:
            return _diverged(finding, grown)
        return finding

    def _bad_weights(self, reading: StepReading) -> Finding:
        bad = np.flatnonzero(np.isinf(reading.parameters.weight_norm))
        names = [reading.parameters.names[int(i)] for i in bad]
        when, cause = self._why_weights(reading)
        return Finding(
            rule="non_finite",
            layer=OPTIMIZER,
            severity="error",
            step=reading.step,
            summary=f"{len(names)} parameter(s) were made non-finite {when}, {names[0]} among them",
            evidence={"parameters": ", ".join(names[:8]), "count": len(names)},
            cause=cause,
            remedy="start from weights that are finite; raise eps, lower the rate or clip",
        )

    def _why_weights(self, reading: StepReading) -> tuple[str, str]:
        """Say when the weights went bad and by what."""
        if self._taken_in is not None:
            step = f"step {self._taken_in:,}"
            return f"by the update of {step}", f"the non-finite gradient of {step} was let through"
        if reading.step == 0 or not self._growth:
            return "before the first step", "a checkpoint or initialisation that holds NaN"
        cause = (
            "the optimizer made a non-finite update out of finite gradients (a tiny epsilon, an "
            "overflowing moment, or a rate far too high)"
        )
        return "by the last update", cause

    def scalars(self) -> Mapping[str, float]:
        """Give the counts so far and the loss scale."""
        scalars = {"grad/non_finite": float(self._bad_steps), "grad/skipped": float(self._skipped)}
        if self._scale is not None:
            scalars["grad/loss_scale"] = self._scale
        return scalars

    def config(self) -> Mapping[str, Any]:
        """Give the options."""
        return asdict(self.options)

    def state_dict(self) -> dict[str, Any]:
        """Give counters and the growth of the norms."""
        return {
            "bad_steps": self._bad_steps,
            "skipped": self._skipped,
            "in_row": dict(self._in_row),
            "told_at": dict(self._told_at),
            "growth": {name: state.state_dict() for name, state in self._growth.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved counters."""
        self._bad_steps, self._skipped = int(state["bad_steps"]), int(state["skipped"])
        self._in_row = {name: int(count) for name, count in state["in_row"].items()}
        self._told_at = {name: int(step) for name, step in state["told_at"].items()}
        self._growth = {
            name: GrowthState.restored(growing) for name, growing in state["growth"].items()
        }


def _unexplained(reading: StepReading, error: Exception) -> Finding:
    return Finding(
        rule="non_finite",
        layer=reading.non_finite[-1].rpartition(".")[0] if reading.non_finite else LOSS,
        severity="error",
        step=reading.step,
        summary="non-finite values; what explains them failed",
        evidence={
            "bad_parameters": ", ".join(reading.non_finite[:8]),
            "error": f"{type(error).__name__}: {error}"[:200],
        },
        remedy="look at the layer of the last bad parameter first; please report the error",
    )


def _scaler_skips(reading: StepReading) -> bool:
    return reading.loss_scale is not None and bool(reading.non_finite)


def _finding(answer: Answer, reading: StepReading) -> Finding:
    micro, rank = answer.micro_batches, answer.rank
    return finding_of(answer.blame, reading.step, micro_batches=micro, rank=rank)


def _diverged(finding: Finding, grown: Growth) -> Finding:
    return replace(
        finding,
        layer=OPTIMIZER,
        summary=f"gradient norms grew {grown.factor:.3g}x since step {grown.first_step:,} "
        f"until they overflowed (first in {finding.layer})",
        evidence={
            "grown_by": grown.factor,
            "factor_per_step": grown.per_step,
            "since_step": grown.first_step,
            "overflowed_in": finding.layer,
            **finding.evidence,
        },
        cause="the learning rate is too high: training diverged long before the first NaN",
        remedy="lower the learning rate, warm it up, or clip the gradient norm",
    )


def _scale_too_high(reading: StepReading, skips: Mapping[str, float]) -> Finding:
    return Finding(
        rule="loss_scale",
        layer=OPTIMIZER,
        severity="info",
        step=reading.step,
        summary=f"the scaler skipped {int(skips['skipped_in_a_row'])} steps in a row; without its "
        "scale the gradients are finite",
        evidence=dict(skips),
        cause="the loss scale is still too high for these gradients and is being lowered",
        remedy="nothing if it settles; else start with a lower init_scale",
    )
