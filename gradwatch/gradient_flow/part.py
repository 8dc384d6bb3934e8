"""The gradient-flow part: keeps the history, asks the rules, words the findings."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gradwatch.cooldown import Cooldown
from gradwatch.gradient_flow import wording
from gradwatch.gradient_flow.growth import GrowthState, growth, update_growth
from gradwatch.gradient_flow.options import GradientFlowOptions
from gradwatch.gradient_flow.rules import is_rising, vanishing_layers, where_it_vanishes
from gradwatch.layers import kinds_of, match
from gradwatch.parts import Needs, Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gradwatch.findings import Finding
    from gradwatch.parts import Stage
    from gradwatch.readings import BoolArray, FloatArray, FlowReading, StepReading
    from gradwatch.reasons import Reasons

CLIPPED_SLACK = 1e-6
# Patience for a branch that begins at zero: it wakes as slowly as the rate warms up.
WAKING = 20


class Track:
    """What is remembered of one optimizer's layers between steps.

    Attributes:
        layers: Layer names the counters stand for.
        vanishing: (L,) steps in a row each layer was marked vanishing.
        zero: (L,) steps in a row its gradient was exactly zero.
        missing: (L,) steps in a row it had none.
        growth: Growth of the total norm.
        steps: Number of steps counted.
        last_step: Optimizer step counted last; -1 before the first.
        told_run: First step of the run of rising norms told last; -1 before one was.
        born_zero: (L,) layers whose first gradient was exactly zero.
        cut: (L,) layers that were called in the first step and got no gradient.
    """

    def __init__(self, layers: tuple[str, ...], window: int) -> None:
        """Start counting at zero."""
        self.layers = layers
        self.vanishing = np.zeros(len(layers), dtype=np.int64)
        self.zero = np.zeros(len(layers), dtype=np.int64)
        self.missing = np.zeros(len(layers), dtype=np.int64)
        self.history: deque[FloatArray] = deque(maxlen=window)
        self.growth = GrowthState()
        self.steps, self.last_step = 0, -1
        self.told_run = -1
        self.born_zero: BoolArray = np.zeros(len(layers), dtype=np.bool_)
        self.cut: BoolArray = np.zeros(len(layers), dtype=np.bool_)
        self.layer_start: FloatArray = np.full(len(layers), np.nan)

    def state(self) -> dict[str, Any]:
        """Give the counters as primitives."""
        return {
            "layers": list(self.layers),
            "vanishing": self.vanishing.tolist(),
            "zero": self.zero.tolist(),
            "missing": self.missing.tolist(),
            "history": [row.tolist() for row in self.history],
            "growth": self.growth.state_dict(),
            "steps": self.steps,
            "last_step": self.last_step,
            "told_run": self.told_run,
            "born_zero": self.born_zero.tolist(),
            "cut": self.cut.tolist(),
            "layer_start": self.layer_start.tolist(),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any], window: int) -> Track:
        """Go on from saved counters."""
        track = cls(tuple(state["layers"]), window)
        track.vanishing = np.asarray(state["vanishing"], dtype=np.int64)
        track.zero = np.asarray(state["zero"], dtype=np.int64)
        track.missing = np.asarray(state["missing"], dtype=np.int64)
        track.history.extend(np.asarray(row, dtype=np.float64) for row in state["history"])
        track.growth = GrowthState.restored(state["growth"])
        track.steps, track.last_step = int(state["steps"]), int(state["last_step"])
        track.told_run = int(state["told_run"])
        track.born_zero = np.asarray(state["born_zero"], dtype=np.bool_)
        track.cut = np.asarray(state["cut"], dtype=np.bool_)
        track.layer_start = np.asarray(state["layer_start"], dtype=np.float64)
        return track


class GradientFlow(Part):
    """Judge the per-layer gradient norms of every optimizer step.

    Args:
        options: Thresholds and patience.
    """

    name: ClassVar[str] = "gradient_flow"
    needs = Needs(flow=True, activations=True, cuts=True)

    def __init__(self, options: GradientFlowOptions | None = None) -> None:
        """Start without history."""
        self.options = options or GradientFlowOptions()
        self._chosen: frozenset[str] = frozenset()
        self._tracks: dict[str, Track] = {}
        self._cooldown = Cooldown(self.options.cooldown)
        self._scalars: dict[str, float] = {}
        self._clipped: dict[str, tuple[int, int]] = {}
        self._reasons: Reasons | None = None
        self._kinds: dict[str, str] = {}

    def open(self, stage: Stage) -> None:
        """Let others know how long a fading gradient is looked at before it is told."""
        self._reasons, self._kinds = stage.reasons, kinds_of(stage.model)
        if self._reasons is not None:
            self._reasons.expect("vanishing", self.options.patience)

    def start(self, layers: Sequence[str]) -> None:
        """Choose the layers to judge.

        Raises:
            ConfigurationError: If a pattern matches no layer.
        """
        self._chosen = match("layers", self.options.layers, layers)

    def judge(self, reading: StepReading) -> list[Finding]:
        """Count, compare, and say what stands out."""
        self._measure_totals(reading)
        if reading.non_finite:
            return []
        track = self._track(reading)
        self._count(track, reading.flow)
        found = [*self._over_depth(track, reading), *self._over_time(track, reading)]
        told = [finding for finding in found if self._cooldown.allows(finding)]
        for finding in told:
            self._cooldown.cover(finding, self._alike(finding, track))
        return told

    def _alike(self, finding: Finding, track: Track) -> list[str]:
        """Name the layers that a finding speaks for: with them it would be told again."""
        if finding.rule == "vanishing":
            return _named(track.layers, track.vanishing > 0)
        if finding.rule == "unused":
            idle = _named(track.layers, track.missing == self.options.patience)
            kinds = {self._kind(name) for name in idle}
            return [name for name in track.layers if self._kind(name) in kinds]
        return []

    def _kind(self, layer: str) -> str:
        return self._kinds.get(layer, layer)

    def _reasoned(self, finding: Finding) -> Finding:
        """Tell with a fading gradient what the look at the graph knows of it."""
        if self._reasons is None or not self._cooldown.is_due(finding):
            return finding
        why = self._reasons.why(finding.rule, finding.layer)
        return wording.because(finding, why) if why else finding

    def _track(self, reading: StepReading) -> Track:
        track = self._tracks.get(reading.optimizer)
        if track is not None and reading.step < track.last_step:
            # A step that lies behind the last one belongs to another fit of the same callback.
            track, self._cooldown = None, Cooldown(self.options.cooldown)
        if track is None or track.layers != reading.flow.layers:
            track = Track(reading.flow.layers, 2 * self.options.patience)
            self._tracks[reading.optimizer] = track
        track.last_step = reading.step
        return track

    def _measure_totals(self, reading: StepReading) -> None:
        suffix = f"/{reading.optimizer}" if reading.optimizer else ""
        self._scalars = {f"grad/norm{suffix}": reading.grad_norm}
        clipped = reading.grad_norm_clipped
        if clipped is not None and not reading.non_finite:
            cut, steps = self._clipped.get(suffix, (0, 0))
            cut += clipped < reading.grad_norm * (1 - CLIPPED_SLACK)
            self._clipped[suffix] = (cut, steps + 1)
            self._scalars[f"grad/norm_clipped{suffix}"] = clipped
            self._scalars[f"grad/clip_rate{suffix}"] = cut / (steps + 1)

    def _count(self, track: Track, flow: FlowReading) -> None:
        usable = self._usable(flow)
        marked = vanishing_layers(flow.grad_norm, usable, self.options.vanishing)
        track.history.append(np.where(usable, flow.grad_norm, 0.0))
        exactly_zero = flow.has_grad & (flow.grad_norm == 0)
        if track.steps == 0:
            track.born_zero = exactly_zero
        track.vanishing = np.where(marked, track.vanishing + 1, 0)
        track.zero = np.where(exactly_zero, track.zero + 1, 0)
        track.missing = np.where(~flow.has_grad & ~flow.frozen, track.missing + 1, 0)
        track.steps += 1

    def _usable(self, flow: FlowReading) -> BoolArray:
        grad, weight = flow.grad_norm, flow.weight_norm
        positive = np.isfinite(grad) & (np.nan_to_num(grad) > 0)
        return positive & ~flow.frozen & (np.nan_to_num(weight) > 0)

    def _over_depth(self, track: Track, reading: StepReading) -> Iterator[Finding]:
        patience, flow = self.options.patience, reading.flow
        every = self.options.layers == ("*",)
        judged = np.asarray([every or name in self._chosen for name in flow.layers], dtype=np.bool_)
        wait = np.where(track.born_zero, WAKING * patience, patience)
        late = judged & (track.vanishing >= wait)
        if late.any() and (late & ~is_rising(np.asarray(track.history))).any():
            marked = judged & (track.vanishing > 0)
            place = where_it_vanishes(flow.grad_norm, self._usable(flow), marked)
            faded = wording.vanishing(reading, place, int(marked.sum()))
            # What falls off a cliff is no matter of the chain it lies in.
            yield faded if place.cliff else self._reasoned(faded)
        dead = judged & (track.zero == patience)
        if dead.any():
            yield wording.dead(reading, dead, patience)
        cut_off = judged & ~flow.has_grad & ~flow.frozen
        # Only the first step's calls are known: later an expert may just be idle.
        if track.steps == 1 and flow.called is not None:
            track.cut = cut_off & flow.called & ~self._meant(flow.layers)
        if track.steps == 1 and track.cut.any():
            yield wording.disconnected(reading, track.cut)
        idle = cut_off & ~track.cut & (track.missing == patience)
        if idle.any() and (idle := idle & ~self._resting("unused", reading)).any():
            kinds = {self._kind(name): name for name in _named(flow.layers, idle)}
            many = [kind for kind, name in kinds.items() if kind != name]
            yield wording.unused(reading, idle, patience, many)
        stale = {name: norm for name, norm in reading.stale.items() if name in self._chosen}
        if stale:
            yield wording.never_cleared(reading, stale)

    def _meant(self, layers: Sequence[str]) -> BoolArray:
        """Mark the layers that the backward was told to leave out."""
        excused = self._reasons.excused("disconnected") if self._reasons else frozenset()
        return np.asarray([name in excused for name in layers], dtype=np.bool_)

    def _resting(self, rule: str, reading: StepReading) -> BoolArray:
        rests = [self._cooldown.rests(rule, name, reading.step) for name in reading.flow.layers]
        return np.asarray(rests, dtype=np.bool_)

    def _over_time(self, track: Track, reading: StepReading) -> Iterator[Finding]:
        highest = track.growth.highest
        track.growth = update_growth(track.growth, reading.step, reading.grad_norm)
        if len(track.growth.points) == 1:
            track.layer_start = reading.flow.grad_norm.copy()
        if track.steps > self.options.patience and highest > 0:
            jump = reading.grad_norm / highest
            if jump >= self.options.exploding:
                yield wording.jumped(reading, jump)
                return
        grown = growth(track.growth)
        if grown is None or len(track.growth.points) <= self.options.patience:
            return
        # Which layer is strongest changes along a run: without this it would be told for each.
        if grown.exceeds(self.options.exploding) and grown.first_step != track.told_run:
            track.told_run = grown.first_step
            yield wording.exploding(reading, grown, track.layer_start)

    def scalars(self) -> Mapping[str, float]:
        """Give total norm, clipped norm and clip rate of the step judged last."""
        return self._scalars

    def config(self) -> Mapping[str, Any]:
        """Give the options."""
        return asdict(self.options)

    def state_dict(self) -> dict[str, Any]:
        """Give counters and cooldowns."""
        return {
            "tracks": {name: track.state() for name, track in self._tracks.items()},
            "cooldown": self._cooldown.state_dict(),
            "clipped": {name: list(counts) for name, counts in self._clipped.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved counters and cooldowns."""
        window = 2 * self.options.patience
        self._tracks = {k: Track.restored(v, window) for k, v in state["tracks"].items()}
        self._cooldown.load_state_dict(state["cooldown"])
        self._clipped = {k: (int(a), int(b)) for k, (a, b) in state["clipped"].items()}


def _named(layers: Sequence[str], marked: BoolArray) -> list[str]:
    return [layers[int(place)] for place in np.flatnonzero(marked)]
