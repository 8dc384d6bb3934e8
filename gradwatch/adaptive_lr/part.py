"""The learning rate follows the gradient's signal, one update at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple

from torch.optim import Optimizer

from gradwatch.adaptive_lr.options import AdaptiveLearningRateOptions
from gradwatch.adaptive_lr.rule import GroupNorms, RateState, init, norms_by_group, snr, update
from gradwatch.adaptive_lr.scaling import PendingRates, refuse
from gradwatch.adaptive_lr.watch import Streak, observe, tell
from gradwatch.findings import Finding
from gradwatch.parts import Needs, Part
from gradwatch.readings import StepReading


class _Group(NamedTuple):
    rate: RateState
    streak: Streak


class _Judged(NamedTuple):
    snr: float
    factor: float


class AdaptiveLearningRate(Part):
    """Multiply the scheduled rate of each group by a factor from its SNR, for one update.

    SNR = ‖θ‖/‖g‖ of the group is the LARS trust ratio (You, Gitman & Ginsburg 2017,
    arXiv:1708.03888). ``g`` is the gradient that is applied: after norm clipping, where the
    reading knows it. The rule ``inverse`` multiplies by target/SNR, ``proportional`` by
    SNR/target. Where a norm is zero, tiny or non-finite the factor is 1.

    The scheduler stays in charge: the rate is put back in the optimizer's post-step hook, so
    schedulers never compound the factor and checkpoints hold the user's rate.

    Args:
        options: Rule, target, bounds, averaging and warm-up.
    """

    name: ClassVar[str] = "adaptive_lr"
    needs = Needs(weights=True)

    def __init__(self, options: AdaptiveLearningRateOptions | None = None) -> None:
        self.options = options or AdaptiveLearningRateOptions()
        self._groups: dict[tuple[str, int], _Group] = {}
        self._pending = PendingRates()
        self._optimizer = ""
        self._judged: list[_Judged] = []
        self._effective: list[float] = []

    def refuse(self, optimizer: Optimizer) -> str | None:
        """Say why an optimizer's rate cannot follow the SNR; None where it can."""
        return refuse(optimizer)

    def judge(self, reading: StepReading) -> list[Finding]:
        """Take in the norms of every group and settle this step's factors."""
        self._optimizer, self._judged, self._effective = reading.optimizer, [], []
        norms = norms_by_group(reading, exclude_1d=self.options.exclude_1d)
        findings = [self._judge_group(index, of, reading) for index, of in enumerate(norms)]
        return [finding for finding in findings if finding is not None]

    def _judge_group(self, index: int, norms: GroupNorms, reading: StepReading) -> Finding | None:
        key = (reading.optimizer, index)
        group = self._groups.get(key, _Group(init(), Streak()))
        ratio = snr(*norms, self.options.floor)
        factor, rate = update(ratio, group.rate, self.options)
        side, streak = observe(ratio, group.streak, reading.step, self.options)
        self._groups[key] = _Group(rate, streak)
        self._judged.append(_Judged(ratio, factor))
        if side is None:
            return None
        place = " ".join(filter(None, (reading.optimizer, f"group {index}")))
        return tell(side, place, norms, streak, reading.step)

    def before_update(self, optimizer: Optimizer, reading: StepReading) -> None:  # noqa: ARG002
        """Multiply the rates until the optimizer has stepped."""
        self._pending.apply(optimizer, [judged.factor for judged in self._judged])
        self._effective = [
            float(rate) if isinstance(rate, float | int) else math.nan
            for rate in (group["lr"] for group in optimizer.param_groups)
        ]

    def after_batch(self) -> None:
        """Put the rates back where the step was skipped."""
        self._pending.restore()

    def scalars(self) -> Mapping[str, float]:
        """Give SNR, factor and effective rate of each group of the step judged last.

        The effective rate is left out where a tensor holds it: reading it would wait for
        the device.
        """
        effective = [*self._effective, *[math.nan] * len(self._judged)]
        values = {
            f"lr/{name}{self._suffix(index)}": value
            for index, (judged, rate) in enumerate(zip(self._judged, effective, strict=False))
            for name, value in zip(("snr", "factor", "effective"), (*judged, rate), strict=True)
        }
        return {key: value for key, value in values.items() if math.isfinite(value)}

    def _suffix(self, index: int) -> str:
        optimizer = f"/{self._optimizer}" if self._optimizer else ""
        return optimizer + (f"/group{index}" if len(self._judged) > 1 else "")

    def config(self) -> Mapping[str, Any]:
        """Give the options."""
        return asdict(self.options)

    def state_dict(self) -> dict[str, Any]:
        """Give averages and streaks of every group."""
        return {
            f"{optimizer}/{index}": {**group.rate._asdict(), **group.streak._asdict()}
            for (optimizer, index), group in self._groups.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the averages and streaks of a saved run."""
        self._groups = {_key(name): _group(values) for name, values in state.items()}


def _key(name: str) -> tuple[str, int]:
    optimizer, _, index = name.rpartition("/")
    return optimizer, int(index)


def _group(values: Mapping[str, Any]) -> _Group:
    rate = RateState(**{field: values[field] for field in RateState._fields})
    return _Group(rate, Streak(**{field: values[field] for field in Streak._fields}))
