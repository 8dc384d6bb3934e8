"""Symptoms that show in the readings of any run, without a profile."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from gradwatch.cooldown import Cooldown
from gradwatch.findings import ROOT
from gradwatch.layers import LayerMap
from gradwatch.parts import Needs, Part, Stage
from gradwatch.readings import StepReading, StepRecord
from gradwatch.symptoms.read import devices_of, half_copy_only, rests
from gradwatch.symptoms.signs import Precision, Signs
from gradwatch.symptoms.table import find_symptoms

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from gradwatch.findings import Finding

PATIENCE = 3
ONCE = 1 << 62


class SymptomWatch(Part):
    """Look for the symptoms of half precision and of one process with many devices.

    Those of time are asked of a profile: `gradwatch.symptoms.find_symptoms`.
    """

    name: ClassVar[str] = "symptoms"
    needs = Needs(flow=True)

    def __init__(self) -> None:
        self._cooldown = Cooldown(ONCE)
        self._begin(None)

    def _begin(self, stage: Stage | None) -> None:
        self._devices = devices_of(stage.given or stage.model) if stage else 1
        self._stage = stage
        self._dtypes: dict[str, torch.dtype] | None = None
        self._ratios: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=PATIENCE))
        self._copy_only: set[str] = set()
        self._resting: set[int] = set()
        self._highest_scale = 0.0
        # The devices are known from the start.
        self._news = True

    def open(self, stage: Stage) -> None:
        """Learn the model."""
        self._begin(stage)

    def before_update(self, optimizer: Optimizer, reading: StepReading) -> None:
        """See how the optimizer keeps the weights, once it has a state, and whether it moves."""
        if reading.logged and rests(optimizer):
            self._resting.add(reading.step)
        if reading.logged and reading.step:
            self._news = True
            self._copy_only |= {half_copy_only(optimizer)} - {""}

    def recorded(self, record: StepRecord) -> None:
        """Keep the sizes of true updates."""
        flow = record.flow
        ratios = None if flow is None else flow.update_ratio
        resting = record.step in self._resting
        self._resting.discard(record.step)
        if flow is None or ratios is None or resting:
            return
        moved = zip(flow.layers, ratios.tolist(), flow.grad_norm.tolist(), strict=True)
        for layer, ratio, grad in moved:
            if grad > 0 and ratio >= 0:
                self._ratios[layer].append(ratio)
        self._news = True

    def judge(self, reading: StepReading) -> list[Finding]:
        """Ask the table, where there is something it has not heard."""
        if not self._news and reading.loss_scale is None:
            return []
        self._news = False
        signs = Signs(
            loss_scale=self._fallen(reading.loss_scale),
            precision=self._precision(),
            half_copy_only=next(iter(sorted(self._copy_only)), ""),
            devices=self._devices,
        )
        found = find_symptoms(signs, reading.step)
        # They are the run's, whichever layer shows them best at the moment.
        return [each for each in found if self._cooldown.allows(replace(each, layer=ROOT))]

    def _fallen(self, scale: float | None) -> float | None:
        """Give a loss scale that is lower than it was; one that began low has not backed off."""
        self._highest_scale = max(self._highest_scale, scale or 0.0)
        return None if scale is None or scale >= self._highest_scale else scale

    def _precision(self) -> dict[str, Precision]:
        known = {name: own for name, own in self._ratios.items() if len(own) == PATIENCE}
        types = self._types() if known else {}
        return {
            name: Precision(
                str(types[name]).removeprefix("torch."),
                torch.finfo(types[name]).eps,
                median(own),
            )
            for name, own in known.items()
            if name in types
        }

    def _types(self) -> dict[str, torch.dtype]:
        if self._dtypes is None and self._stage is not None:
            layers = LayerMap(self._stage.model).owners
            self._dtypes = {
                name: each.dtype for each, name in layers.items() if each.is_floating_point()
            }
            self._stage = None
        return self._dtypes or {}

    def close(self) -> None:
        """Hold on to nothing of the model."""
        self._stage = None

    def state_dict(self) -> dict[str, Any]:
        """Give what was told: a resumed run says nothing twice."""
        return {"told": self._cooldown.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._cooldown.load_state_dict(state["told"])

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle as a part that plays on no model."""
        return {"_cooldown": self._cooldown}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin without a model."""
        vars(self).update(state)
        self._begin(None)
