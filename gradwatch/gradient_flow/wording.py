"""The words of the gradient-flow findings: what is seen, why it happens, what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gradwatch.findings import Evidence, Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gradwatch.gradient_flow.growth import Growth
    from gradwatch.gradient_flow.rules import Vanishing
    from gradwatch.readings import BoolArray, FloatArray, StepReading

AMONG_FASTEST = 0.1
MOST_NAMES = 8


def vanishing(reading: StepReading, place: Vanishing, count: int) -> Finding:
    """Word a vanishing profile."""
    layers, norms = reading.flow.layers, reading.flow.grad_norm
    above = layers[place.above]
    shape = "falls off a cliff below" if place.cliff else "fades along the chain below"
    return Finding(
        rule="vanishing",
        layer=layers[place.layer],
        severity="warning",
        step=reading.step,
        summary=f"the gradient {shape} {above}: {place.ratio:.1e} of the strongest layers",
        evidence={
            "grad_norm": float(norms[place.layer]),
            "ratio_to_strongest": place.ratio,
            "factor_per_layer": place.per_layer,
            "layers_affected": count,
            "next_strong_layer": above,
        },
        cause="saturating functions (sigmoid, tanh, softmax) or too small weights in a long chain "
        "multiply the gradient down",
        remedy="use residual connections, a non-saturating activation (ReLU, GELU), normalisation "
        "layers, or an initialisation made for the activation",
    )


def because(finding: Finding, reason: Finding) -> Finding:
    """Tell a finding with the cause another rule knows of it."""
    return replace(
        finding,
        summary=f"{finding.summary}; {reason.summary}",
        evidence={**finding.evidence, **reason.evidence},
        cause=reason.cause,
        remedy=reason.remedy,
    )


def dead(reading: StepReading, marked: BoolArray, patience: int) -> Finding:
    """Word layers whose gradient became exactly zero together, under the one nearest the loss."""
    layer = int(np.flatnonzero(marked)[-1])
    return Finding(
        rule="dead",
        layer=reading.flow.layers[layer],
        severity="warning",
        step=reading.step,
        summary=f"its gradient has been exactly zero for {patience} steps{_others(marked)}",
        evidence={
            "grad_norm": 0.0,
            "weight_norm": float(reading.flow.weight_norm[layer]),
            "steps": patience,
            **_listed(reading, marked),
        },
        cause="every unit behind it is switched off (ReLU below zero), multiplied by a weight "
        "that stays zero, or masked",
        remedy="lower the learning rate, use a leaky activation, or look at what multiplies "
        "its output by zero",
    )


def disconnected(reading: StepReading, cut_off: BoolArray) -> Finding:
    """Word layers that ran but that the backward never reached."""
    layers, places = reading.flow.layers, np.flatnonzero(cut_off)
    reached = [i for i in np.flatnonzero(reading.flow.has_grad) if i > places[-1]]
    inside = reading.cuts[-1] if reading.cuts else ""
    last, behind = layers[int(places[-1])], layers[int(reached[0])] if reached else "the loss"
    where = f"inside {inside}" if inside else f"between {last} and {behind}"
    evidence: dict[str, int | str] = {
        "layers_without_gradient": ", ".join(layers[int(i)] for i in places[:MOST_NAMES]),
        "count": len(places),
        "next_layer_with_gradient": behind,
    }
    return Finding(
        rule="disconnected",
        layer=inside or last,
        severity="warning",
        step=reading.step,
        summary=f"no gradient reaches {len(places)} layer(s) that ran: the graph is cut {where}",
        evidence=evidence,
        cause="detach(), .data, .item(), a NumPy round trip, no_grad, an operation without a "
        "backward, or reentrant checkpointing of an input that needs no gradient",
        remedy="take the cut out, or set requires_grad=False on these layers if it is meant",
    )


def unused(
    reading: StepReading, marked: BoolArray, patience: int, kinds: Collection[str] = ()
) -> Finding:
    """Word layers that did not take part, under the one nearest the loss.

    Args:
        reading: The step.
        marked: (L,) the layers.
        patience: Steps they have been idle for.
        kinds: What they share with others, of which none is told for a while.
    """
    once = {"told_once_for": ", ".join(list(kinds)[:MOST_NAMES])} if kinds else {}
    return Finding(
        rule="unused",
        layer=reading.flow.layers[int(np.flatnonzero(marked)[-1])],
        severity="info",
        step=reading.step,
        summary=f"it got no gradient for {patience} steps in a row{_others(marked)}",
        evidence={"steps": patience, **_listed(reading, marked), **once},
        cause="in these steps the forward did not use it, nothing of it reached the loss, or the "
        "backward was told to leave it out (inputs=...)",
        remedy="nothing if that is meant (an idle expert, an unused head); else call it, or "
        "freeze it so that it is not optimized",
    )


def never_cleared(reading: StepReading, stale: Mapping[str, float]) -> Finding:
    """Word gradients that nobody clears."""
    layer = next(name for name in reading.flow.layers if name in stale)
    return Finding(
        rule="never_cleared",
        layer=layer,
        severity="warning",
        step=reading.step,
        summary="the last step's gradient was still there when this step's backward began",
        evidence={"leftover_grad_norm": stale[layer], "layers": len(stale)},
        cause="zero_grad() is never called between optimizer steps, so gradients pile up",
        remedy="call optimizer.zero_grad() once per optimizer step, before the first backward",
    )


def exploding(reading: StepReading, grown: Growth, start: FloatArray) -> Finding:
    """Word a norm that grows and grows."""
    norms = reading.flow.grad_norm
    factor = np.divide(norms, start, out=np.zeros_like(norms), where=np.nan_to_num(start) > 0)
    factor = np.nan_to_num(factor)
    return Finding(
        rule="exploding",
        layer=_strongest(reading, factor >= AMONG_FASTEST * factor.max(initial=0.0)),
        severity="warning",
        step=reading.step,
        summary=f"the gradient norm grew {grown.factor:.3g}x since step {grown.first_step:,}"
        + _clipped(reading),
        evidence={
            "grad_norm": reading.grad_norm,
            "grown_by": grown.factor,
            "factor_per_step": grown.per_step,
            "since_step": grown.first_step,
            "fastest_layer": reading.flow.layers[int(np.argmax(factor))],
            **_clipped_evidence(reading),
        },
        cause="the learning rate is too high for the curvature, or a recurrence amplifies",
        remedy="lower the learning rate or warm it up, and clip the gradient norm",
    )


def jumped(reading: StepReading, factor: float) -> Finding:
    """Word a norm that is suddenly far above everything before."""
    return Finding(
        rule="exploding",
        layer=_strongest(reading, reading.flow.has_grad),
        severity="warning",
        step=reading.step,
        summary=f"the gradient norm jumped in one step to {factor:.3g}x the highest before"
        + _clipped(reading),
        evidence={
            "grad_norm": reading.grad_norm,
            "times_the_highest_before": factor,
            **_clipped_evidence(reading),
        },
        cause="an outlier in the data, a term of the loss that blew up, or a step too far",
        remedy="look at this step's batch, clip the gradient norm, or lower the learning rate",
    )


def _strongest(reading: StepReading, among: BoolArray) -> str:
    norms = np.where(among, np.nan_to_num(reading.flow.grad_norm), -1.0)
    return reading.flow.layers[int(np.argmax(norms))]


def _others(marked: BoolArray) -> str:
    count = int(marked.sum()) - 1
    return f", and that of {count} other layer(s) with it" if count else ""


def _listed(reading: StepReading, marked: BoolArray) -> dict[str, Evidence]:
    names = [reading.flow.layers[int(place)] for place in np.flatnonzero(marked)]
    return {"layers": ", ".join(names[:MOST_NAMES])} if len(names) > 1 else {}


def _clipped(reading: StepReading) -> str:
    clipped = reading.grad_norm_clipped
    return "" if clipped is None else f"; it is clipped to {clipped:.3g}"


def _clipped_evidence(reading: StepReading) -> dict[str, Evidence]:
    clipped = reading.grad_norm_clipped
    return {} if clipped is None else {"clipped_to": clipped}
