"""Measure one optimizer's gradients and weights: device values on board, host numbers off.

Shapes: P parameters in the order of the optimizer's groups, K of them with a gradient,
L layers in execution order.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from gradwatch.boarding import board, collect, united_norms
from gradwatch.layers import flattened
from gradwatch.norms import RELIABLE, NormGroup, NormPlan, measurable, nonzero_count
from gradwatch.readings import FlowReading, ParameterReading
from gradwatch.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from gradwatch.layers import LayerMap
    from gradwatch.readings import BoolArray, FloatArray


class Measured(NamedTuple):
    """What a step's transfer said of one optimizer.

    Attributes:
        parameters: Norms per parameter, unscaled.
        flow: Norms per layer.
        suspects: (P,) positions whose gradient holds NaN or Inf.
    """

    parameters: ParameterReading
    flow: FlowReading
    suspects: tuple[int, ...]


class OptimizerView:
    """The parameters of one optimizer, how they are measured, and under which names.

    Args:
        optimizer: The optimizer.
        layers: Names of the model's parameters and layers.
        order: All layer names in execution order.
    """

    def __init__(self, optimizer: Optimizer, layers: LayerMap, order: Sequence[str]) -> None:
        """Take the parameters down once; `is_current` tells when that is out of date."""
        self.parameters, group = flattened(optimizer)
        owners = [layers.owner(parameter) for parameter in self.parameters]
        held = set(owners)
        rest = dict.fromkeys(owner for owner in owners if owner not in set(order))
        self.layers = (*(name for name in order if name in held), *rest)
        place = {name: position for position, name in enumerate(self.layers)}
        self.names = tuple(layers.name(parameter) for parameter in self.parameters)
        self._layer = np.asarray([place[owner] for owner in owners], dtype=np.int64)
        self._group = np.asarray(group, dtype=np.int64)
        self._ndim = np.asarray([parameter.ndim for parameter in self.parameters], dtype=np.int64)
        self._present: list[int] = []
        self._absent: list[bool] = []
        self._sparse: list[bool] = []
        self._plans: tuple[NormPlan, NormPlan] | None = None
        self._exact: tuple[set[int], set[int]] = (set(), set())
        count = len(self.parameters)
        self._trusted = [np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)]
        self._weight_norm: FloatArray = np.full(count, np.nan)
        self._layer_weight: FloatArray = np.full(len(self.layers), np.nan)
        self._able = np.asarray([measurable(p) for p in self.parameters], dtype=np.bool_)
        self._loaded: tuple[list[NormGroup], list[NormGroup]] = ([], [])

    def is_current(self, optimizer: Optimizer) -> bool:
        """Tell whether the optimizer still holds the same parameters in the same order."""
        now, _ = flattened(optimizer)
        return len(now) == len(self.parameters) and all(map(operator.is_, now, self.parameters))

    def load(self, transfer: Transfer, *, weights: bool) -> None:
        """Measure gradients, and weights where they are due, and put the norms on board.

        Args:
            transfer: What they ride in.
            weights: Measure the weights too; else the last norms stand.
        """
        grads = self._gradients()
        grad_groups = self._plans[0].measure(grads, self._exact[0]) if self._plans else []
        again = weights or bool(np.isinf(self._weight_norm).any())
        weight_groups = self._weight_groups() if again else []
        self._loaded = (grad_groups, weight_groups)
        board(transfer, "grad", grad_groups)
        board(transfer, "weight", weight_groups)

    def _weight_groups(self) -> list[NormGroup]:
        held = [self.parameters[position] for position in self._present]
        return self._plans[1].measure(held, self._exact[1]) if self._plans else []

    def _gradients(self) -> list[Tensor]:
        """Give the gradients there are; plan anew where others are there than last time."""
        every = [parameter.grad for parameter in self.parameters]
        absent = [grad is None for grad in every]
        if absent == self._absent:
            grads = [every[position] for position in self._present]
            if [grad.is_sparse for grad in grads if grad is not None] == self._sparse:
                return [grad for grad in grads if grad is not None]
        self._absent = absent
        return self._replan(every)

    def _replan(self, every: list[Tensor | None]) -> list[Tensor]:
        kept = {i: grad for i, grad in enumerate(every) if grad is not None and measurable(grad)}
        grads = list(kept.values())
        self._present, self._sparse = list(kept), [grad.is_sparse for grad in grads]
        self._settle_exact()
        weights = [self.parameters[position] for position in self._present]
        self._plans = (NormPlan(grads), NormPlan(weights)) if grads else None
        return grads

    def unload(
        self,
        values: Mapping[str, FloatArray],
        divide_by: float,
        act_grad: FloatArray | None,
        *,
        scaled: bool = False,
    ) -> Measured:
        """Turn what the transfer brought into readings.

        Args:
            values: What `Transfer.fetch` handed back.
            divide_by: Loss scale still in the gradients; 1 where they are unscaled.
            act_grad: (L,) activation-gradient norms, unscaled; None on unsampled steps.
            scaled: A gradient scaler is at work: an infinite norm is an overflow it expects.
        """
        grad = collect(values, "grad", self._loaded[0], len(self._present))
        if not scaled:
            self._confirm(grad)
        suspects = self._suspects(grad)
        self._take_weights(values, in_doubt=bool(suspects) and not scaled)
        self._choose_exact(grad)
        parameters = self._parameter_reading(grad / divide_by)
        flow = self._flow_reading(parameters, act_grad)
        return Measured(parameters, flow, tuple(self._present[i] for i in suspects))

    def _confirm(self, grad: FloatArray) -> None:
        """Measure infinite fast norms again, exactly: the one case of a second wait in a step."""
        again = Transfer()
        for index in np.flatnonzero(np.isinf(grad)):
            tensor = self.parameters[self._present[index]].grad
            if tensor is not None and index not in self._exact[0]:
                again.add(str(index), NormPlan([tensor]).measure([tensor], exact={0})[0].values)
        for name, norm in again.fetch().items():
            grad[int(name)] = norm[0]

    def _take_weights(self, values: Mapping[str, FloatArray], *, in_doubt: bool) -> None:
        """Take the weights' norms, and look at once where bad gradients ask for it."""
        groups = self._loaded[1]
        if in_doubt and not groups:
            groups, again = self._weight_groups(), Transfer()
            board(again, "weight", groups)
            values = again.fetch()
        if groups:
            norms = collect(values, "weight", groups, len(self._present))
            norms[~np.isfinite(norms)] = np.inf
            self._weight_norm[self._present] = norms
            self._layer_weight = self.per_layer(self._weight_norm)

    def _suspects(self, grad: FloatArray) -> list[int]:
        """Find the tensors that hold NaN or Inf; a fast zero may be too small to be seen."""
        bad = [int(i) for i in np.flatnonzero(~np.isfinite(grad))]
        unseen = [int(i) for i in np.flatnonzero(grad == 0) if i not in self._exact[0]]
        grad[unseen] = np.nan
        grad[bad] = np.inf
        return bad

    def _choose_exact(self, grad: FloatArray) -> None:
        """Trust the fast norm next time where this one is far from where it fails.

        A zero weight is left at that: nobody asks how far below 1e-19 it is.
        """
        low, high = RELIABLE
        self._trusted[0][self._present] = (grad > low) & (grad < high)
        self._trusted[1] = self._weight_norm < high
        self._settle_exact()

    def _settle_exact(self) -> None:
        grad, weight = (np.flatnonzero(~known[self._present]) for known in self._trusted)
        self._exact = (set(grad.tolist()), set(weight.tolist()))

    def _parameter_reading(self, grad: FloatArray) -> ParameterReading:
        return ParameterReading(
            names=self.names,
            layer=self._layer,
            group=self._group,
            ndim=self._ndim,
            has_grad=self._spread(np.ones(len(self._present)), 0.0) > 0,
            grad_norm=self._spread(grad, np.nan),
            weight_norm=self._weight_norm.copy(),
        )

    def _flow_reading(
        self, parameters: ParameterReading, act_grad: FloatArray | None
    ) -> FlowReading:
        trains = np.asarray([parameter.requires_grad for parameter in self.parameters])
        return FlowReading(
            layers=self.layers,
            grad_norm=self.per_layer(parameters.grad_norm),
            weight_norm=self._layer_weight,
            has_grad=self._any(parameters.has_grad),
            frozen=~self._any(trains & self._able),
            act_grad=act_grad,
        )

    def _spread(self, values: FloatArray, absent: float) -> FloatArray:
        spread = np.full(len(self.parameters), absent)
        spread[self._present] = values
        return spread

    def _any(self, flags: BoolArray) -> BoolArray:
        return np.bincount(self._layer, weights=flags, minlength=len(self.layers)) > 0

    def per_layer(self, norms: FloatArray) -> FloatArray:
        """Unite parameter norms to layer norms.

        Args:
            norms: (P,) norms; NaN where there is none.

        Returns:
            (L,) root of the summed squares; NaN where no parameter has a norm.
        """
        known = ~np.isnan(norms)
        united = united_norms(norms[known], self._layer[known], len(self.layers))
        united[~self._any(known)] = np.nan
        return united

    def gradient_groups(self) -> list[NormGroup]:
        """Measure the gradients as they are now, after whatever clipped them."""
        now = [self.parameters[position].grad for position in self._present]
        grads = [grad for grad in now if grad is not None]
        if len(grads) < len(now) or self._plans is None:
            return []
        return self._plans[0].measure(grads)

    def copies(self) -> list[Tensor]:
        """Copy the parameters that have a gradient, to see what the update does to them."""
        return [self.parameters[position].detach().clone() for position in self._present]

    def moved(self, copies: list[Tensor]) -> list[NormGroup]:
        """Measure θ′−θ against the copies, in place of them.

        Args:
            copies: What `copies` gave before the update; overwritten here.
        """
        now = [self.parameters[position].detach() for position in self._present]
        if len(now) != len(copies) or not copies:
            return []
        torch._foreach_sub_(copies, now)
        return NormPlan(copies).measure(copies)

    def update_ratio(
        self, moved: FloatArray, has_grad: BoolArray, weight_norm: FloatArray
    ) -> FloatArray:
        """Give ‖θ′−θ‖/‖θ‖ per layer, NaN where the layer's weights are zero.

        Args:
            moved: (K,) update norms.
            has_grad: (P,) parameters that had a gradient in that step; others may have one now.
            weight_norm: (L,) weight norms before the update.
        """
        spread = np.full(len(self.parameters), np.nan)
        spread[has_grad] = moved
        sizes = self.per_layer(spread)
        return np.divide(sizes, weight_norm, out=np.full_like(sizes, np.nan), where=weight_norm > 0)

    def load_zeros(self, transfer: Transfer) -> None:
        """Put the number of non-zero gradient entries on board, per parameter."""
        grads = [self.parameters[position].grad for position in self._present]
        by_device: dict[torch.device, list[Tensor]] = {}
        for grad in grads:
            if grad is not None:
                by_device.setdefault(grad.device, []).append(nonzero_count(grad))
        if len(by_device) == 1:
            transfer.add("nonzero", torch.stack(next(iter(by_device.values()))))

    def zero_fraction(self, nonzero: FloatArray) -> FloatArray:
        """Give the share of exactly zero gradient entries per layer, NaN without gradient."""
        size = [self.parameters[position].numel() for position in self._present]
        total = self._per_layer_sum(np.asarray(size, dtype=np.float64))
        filled = self._per_layer_sum(nonzero)
        share = np.divide(filled, total, out=np.full_like(total, np.nan), where=total > 0)
        return np.clip(1.0 - share, 0.0, 1.0)

    def _per_layer_sum(self, values: FloatArray) -> FloatArray:
        layer = self._layer[self._present]
        summed = np.bincount(layer, weights=values, minlength=len(self.layers))
        return np.asarray(summed, dtype=np.float64)
