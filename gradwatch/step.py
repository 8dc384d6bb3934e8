"""Read one optimizer step: put everything on board, wait once, take it off as a reading."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from gradwatch.boarding import total_norm
from gradwatch.readings import StepReading

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch import Tensor, nn

    from gradwatch.host import Clock, Host, Scale
    from gradwatch.measure import Measured, OptimizerView
    from gradwatch.ranks import Ranks
    from gradwatch.readings import FloatArray, FlowReading
    from gradwatch.stale import StaleWatch
    from gradwatch.transfer import Transfer

OFF = 2.0


class TapReadings:
    """Activation gradients of a step, from the order they arrived in to one number a layer."""

    def __init__(self, gradients: Sequence[tuple[str, Tensor]]) -> None:
        """Take over what the taps recorded."""
        self._by_device: dict[torch.device, list[tuple[str, Tensor]]] = {}
        for name, norm in gradients:
            self._by_device.setdefault(norm.device, []).append((name, norm))

    def load(self, transfer: Transfer) -> None:
        """Put the norms on board."""
        for device, pairs in self._by_device.items():
            transfer.add(f"taps/{device}", torch.stack([norm.double() for _, norm in pairs]))

    def unload(
        self, values: Mapping[str, FloatArray], layers: Sequence[str], scale: float
    ) -> FloatArray | None:
        """Give the root of the summed squares per layer, unscaled; None where nothing came."""
        if not self._by_device:
            return None
        norms: dict[str, float] = {}
        for device, pairs in self._by_device.items():
            for (name, _), norm in zip(pairs, values[f"taps/{device}"] / scale, strict=True):
                # The square of a double may overflow where the root of the sum does not.
                norms[name] = math.hypot(norms.get(name, 0.0), float(norm))
        return np.asarray([norms.get(name, np.nan) for name in layers])


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """What a step's reading is made of.

    Attributes:
        view: The optimizer's parameters.
        host: The loop.
        clock: Where the loop stands.
        name: The optimizer's name, empty with one optimizer.
        scale: The gradient scaler's part.
        losses: Unscaled loss of each micro-batch.
        taps: What the taps recorded.
        called: Layers the first step's forward called.
        cuts: Modules at which the first step's graph was cut.
        stale: Gradients nobody cleared.
        logged: Whether sinks record this step.
        norms: Whether norms are wanted at all.
        weights: Whether weight norms are wanted on every step.
    """

    view: OptimizerView
    host: Host
    clock: Clock
    name: str
    scale: Scale | None
    losses: Sequence[Tensor]
    taps: TapReadings
    called: Collection[str]
    cuts: tuple[str, ...]
    stale: StaleWatch
    logged: bool
    norms: bool
    weights: bool

    def load(self, transfer: Transfer, ranks: Ranks) -> None:
        """Put everything on board; nothing is waited for."""
        if not self.norms:
            return
        self.view.load(transfer, weights=self.weights or self.logged)
        for number, loss in enumerate(self.losses):
            transfer.add(f"loss/{number}", loss)
        if ranks.count > 1:
            transfer.add("trouble", ranks.worst(transfer.any_non_finite()))
        self.stale.load(transfer)
        self.taps.load(transfer)
        if self.scale is not None:
            transfer.add("scale", self.scale.value)
        if self.logged:
            self.view.load_zeros(transfer)

    def unload(
        self, values: Mapping[str, FloatArray], owner: Mapping[nn.Parameter, str]
    ) -> StepReading:
        """Turn what the transfer brought into the step's reading."""
        scale = float(values["scale"][0]) if "scale" in values else 1.0
        divide_by = scale if self.scale is not None and self.scale.in_gradients else 1.0
        act_grad = self.taps.unload(values, self.view.layers, scale) if self.norms else None
        scaled = self.scale is not None
        measured = self.view.unload(values, divide_by, act_grad, scaled=scaled)
        norm = self._total(measured)
        return StepReading(
            step=self.clock.step,
            log_step=self.clock.log_step,
            optimizer=self.name,
            parameters=measured.parameters,
            flow=self._completed(measured, values),
            grad_norm=norm,
            grad_norm_clipped=self.host.clipped_norm(norm),
            losses=tuple(float(values[f"loss/{i}"][0]) for i in range(len(self.losses)))
            if self.norms
            else (),
            loss_scale=scale if self.scale is not None and self.norms else None,
            non_finite=tuple(self.view.names[position] for position in measured.suspects),
            stale=self._stale(values, owner),
            cuts=self.cuts,
            logged=self.logged,
        )

    def _total(self, measured: Measured) -> float:
        return float("inf") if measured.suspects else total_norm(measured.parameters.grad_norm)

    def _completed(self, measured: Measured, values: Mapping[str, FloatArray]) -> FlowReading:
        called = np.asarray([name in self.called for name in self.view.layers], dtype=np.bool_)
        zeros = self.view.zero_fraction(values["nonzero"]) if "nonzero" in values else None
        return replace(measured.flow, called=called, zero_fraction=zeros)

    def _stale(
        self, values: Mapping[str, FloatArray], owner: Mapping[nn.Parameter, str]
    ) -> dict[str, float]:
        if not self.norms:
            return {}
        never_cleared = self.stale.unload(values)
        own = set(self.view.parameters) if never_cleared else set()
        left: dict[str, float] = {}
        for parameter, norm in never_cleared.items():
            if parameter in own:
                name = owner.get(parameter, "")
                left[name] = max(left.get(name, 0.0), norm)
        return left
