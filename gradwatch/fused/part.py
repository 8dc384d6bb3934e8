"""The part that tries fused layers in the midst of a training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from gradwatch.findings import ROOT, Finding
from gradwatch.fused.bench import Bench
from gradwatch.fused.layout import ChannelsLast
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.providers import resolve
from gradwatch.fused.rows import TOGETHER, Rows, trial_table
from gradwatch.fused.sharded import refuse_model
from gradwatch.fused.trial import Again, Result, Trial
from gradwatch.fused.unsaid import unsaid
from gradwatch.fused.wardrobe import Wardrobe
from gradwatch.parts import Needs, Part, Scene, Stage, Verdict
from gradwatch.ranks import Ranks
from gradwatch.readings import StepReading
from gradwatch.symptoms import Signs, find_symptoms
from gradwatch.words import counted

__all__ = ["FusedBackward"]

WAITS = "fused layers are tried on this micro-batch; training waits, at most {:.0f} s"
NOT_ALL = "another rank has no micro-batch to try them on"


class FusedBackward(Part):
    """Try fused layers once, on a micro-batch of a step, and let the model wear what is kept.

    The trial runs between a step's backward and its update; weights, gradients, buffers, random
    numbers and the position in the data are afterwards what they were, bit for bit.

    Args:
        options: When fused layers are tried and kept.
    """

    name: ClassVar[str] = "fused_backward"
    needs = Needs(norms=False, replay=True)

    def __init__(self, options: FusedBackwardOptions | None = None) -> None:
        """Begin with the stock model."""
        self.options = options or FusedBackwardOptions()
        self._stage: Stage | None = None
        self._wardrobe = Wardrobe()
        self._steps, self._done = 0, False
        self._kept: list[tuple[str, str, str]] = []
        self._device = ""
        self._last = self._resumed = False
        self._layout: ChannelsLast | None = None
        self._followed: set[Optimizer] = set()

    def open(self, stage: Stage) -> None:
        """Learn the model; what an earlier run kept is put on at the first step."""
        self._stage = stage
        self._steps, self._done = 0, False

    def guard(self, reading: StepReading, scene: Scene) -> Verdict:
        """Run the trial when it is due; the step then goes on with the gradients it had."""
        self._steps += 1
        due = self._steps > self.options.after_steps or self._resumed
        if self._done or not due or scene.trouble:
            return Verdict()
        self._done = True
        return Verdict(findings=self._try(reading.step, scene))

    def judge(self, reading: StepReading) -> tuple[Finding, ...]:  # noqa: ARG002 - guard said it
        """Add nothing: a trial is told when it is done."""
        return ()

    def _try(self, step: int, scene: Scene) -> tuple[Finding, ...]:
        if self._stage is None:
            return ()
        model = self._stage.model
        ranks, held = Ranks(), refuse_model(model) or scene.rerun()
        reasons = [own for own in ranks.gather(held if isinstance(held, str) else "") if own]
        if isinstance(held, str) or reasons:
            return (_untried(step, held if isinstance(held, str) else NOT_ALL),)
        bench = Bench(model, *held)
        device = _device_name(bench.device)
        same = self._resumed and device == self._device
        again = Again(frozenset(self._kept), self._last) if same else None
        if self.options.mode != "advise":
            self._stage.say(WAITS.format(self.options.max_seconds))
        result = Trial(bench, self.options, ranks, Rows(self._stage.say)).run(again)
        self._put_on(result)
        self._kept, self._device = [each.key for each in result.kept], device
        self._last, self._resumed = result.channels_last, False
        advises = self.options.mode == "advise"
        if advises and all(row.verdict != "advised" for row in result.rows):
            return ()
        for line in unsaid(result.rows):
            self._stage.say(line)
        self._stage.show(trial_table(result.rows, step))
        slower = [found for own in result.slower for found in find_symptoms(Signs(fused=own), step)]
        return (_told(result, step, self.options.mode), *slower)

    def _put_on(self, result: Result) -> None:
        self._wardrobe.wear(result.kept)
        if result.channels_last and self._stage is not None:
            self._layout = ChannelsLast(self._stage.model)
            self._layout.turn(on=True)

    def before_update(self, optimizer: Optimizer, reading: StepReading) -> None:  # noqa: ARG002
        """Lay the state of each optimizer out like the weights, once."""
        if self._layout is not None and optimizer not in self._followed:
            self._followed.add(optimizer)
            self._layout.follow(optimizer)

    def close(self) -> None:
        """Give the model its stock forwards and layout back."""
        self._wardrobe.take_off()
        if self._layout is not None:
            self._layout.turn(on=False)
            for optimizer in self._followed:
                self._layout.follow(optimizer)
        self._stage = self._layout = None
        self._followed.clear()

    def scalars(self) -> Mapping[str, float]:
        """Count the modules that run a fused forward, once the trial is done."""
        return {"fused/swapped": float(len(self._kept))} if self._done else {}

    def config(self) -> Mapping[str, Any]:
        """Give the options; providers by name."""
        plain = {name: value for name, value in vars(self.options).items() if name != "providers"}
        return {**plain, "providers": [each.name for each in resolve(self.options.providers)]}

    def state_dict(self) -> dict[str, Any]:
        """Give what was kept, and on which device it was measured."""
        return {
            "kept": [list(key) for key in self._kept],
            "device": self._device,
            "channels_last": self._last,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put on again what was kept, or try again where the device is another."""
        self._kept = [(layer, kind, provider) for layer, kind, provider in state["kept"]]
        self._device, self._last = state["device"], state["channels_last"]
        self._resumed = bool(self._device)

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle as a part that plays on no model; what was kept goes along."""
        detached = {"_stage": None, "_layout": None}
        return {**vars(self), **detached, "_wardrobe": Wardrobe(), "_followed": set()}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _told(result: Result, step: int, mode: str) -> Finding:
    counts = Counter[str](row.verdict for row in result.rows if row.kind != TOGETHER)
    together = next((row for row in result.rows if row.kind == TOGETHER), None)
    evidence: dict[str, float | int | str] = {"swapped modules": len(result.kept), **counts}
    if together is not None and together.verdict == "kept" and together.comparison is not None:
        evidence["forward and backward before (ms)"] = together.comparison.before_seconds * 1e3
        evidence["after (ms)"] = together.comparison.after_seconds * 1e3
    summary = _summary(result)
    if mode == "advise":
        advised = [row for row in result.rows if row.verdict == "advised"]
        summary = (
            f"{len(advised)} {'change is' if len(advised) == 1 else 'changes are'} worth a trial"
        )
    return Finding(
        rule="fused_backward", layer=ROOT, severity="info", step=step, summary=summary,
        evidence=evidence, cause="each row of the table 'trials' says what was tried and why",
        remedy="" if result.kept else _remedy(mode, counts),
    )  # fmt: skip


def _summary(result: Result) -> str:
    last = ["convolutions run with channels last"] if result.channels_last else []
    worn = len(result.kept)
    swaps = [f"a fused forward runs in {counted(worn, 'module')}"] if worn else []
    return f"{', '.join(told)} from here on" if (told := swaps + last) else "nothing was changed"


def _remedy(mode: str, counts: Mapping[str, int]) -> str:
    if mode == "advise" and counts.get("advised"):
        return "FusedBackward() tries them and keeps what is right and faster"
    return ""


def _untried(step: int, reason: str) -> Finding:
    return Finding(
        rule="fused_backward", layer=ROOT, severity="info", step=step,
        summary=f"no fused layer was tried: {reason}",
    )  # fmt: skip
