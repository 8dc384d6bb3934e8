"""The rules of gradient flow: pure functions of a profile over depth and its history.

Shapes: L layers in execution order, so index 0 is the far end from the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from gradwatch.readings import BoolArray, FloatArray

CLIFF_SHARE = 0.5
STRONGEST = 0.25
FEWEST_LAYERS = 2
RISING = 2.0


class Vanishing(NamedTuple):
    """Where a gradient profile dies.

    Attributes:
        layer: Index of the layer to name: right below the cliff, or the low end of a slope.
        ratio: Its norm over that of the strongest layers.
        per_layer: Mean factor from a layer to the one before it, along the slope.
        cliff: Whether one gap between neighbours makes most of the fall.
        above: Index of the next layer towards the loss that is still strong.
    """

    layer: int
    ratio: float
    per_layer: float
    cliff: bool
    above: int


def reference_norm(norms: FloatArray) -> float:
    """Give the norm of the strongest layers: the median of the upper quarter.

    Args:
        norms: (N,) positive finite norms.
    """
    count = max(1, round(len(norms) * STRONGEST))
    strongest = np.sort(norms)[-count:]
    # numpy's median does the same, ten times slower on a few numbers.
    return float(0.5 * strongest[(count - 1) // 2] + 0.5 * strongest[count // 2])


def vanishing_layers(grad_norm: FloatArray, usable: BoolArray, threshold: float) -> BoolArray:
    """Mark the layers whose gradient is tiny against the strongest ones.

    Args:
        grad_norm: (L,) gradient norms.
        usable: (L,) layers that can be judged: trained, non-zero, finite.
        threshold: Ratio below which a layer counts.

    Returns:
        (L,) marks.
    """
    if usable.sum() < FEWEST_LAYERS:
        return np.zeros(len(grad_norm), dtype=np.bool_)
    reference = reference_norm(grad_norm[usable])
    return usable & (grad_norm < threshold * reference)


def where_it_vanishes(grad_norm: FloatArray, usable: BoolArray, marked: BoolArray) -> Vanishing:
    """Name the layer a vanishing profile breaks at.

    Args:
        grad_norm: (L,) gradient norms.
        usable: (L,) layers that can be judged.
        marked: (L,) layers that vanish; at least one.
    """
    places = np.flatnonzero(usable)
    logs = np.log10(grad_norm[places])
    reference = float(np.log10(reference_norm(grad_norm[places])))
    lowest = int(np.argmin(np.where(marked[places], logs, np.inf)))
    strong = np.flatnonzero(~marked[places] & (np.arange(len(places)) > lowest))
    above = int(strong[0]) if len(strong) else min(lowest + 1, len(places) - 1)
    gaps = np.diff(logs[lowest : above + 1])
    widest = int(np.argmax(gaps)) if len(gaps) else 0
    fall = reference - float(logs[lowest])
    cliff = bool(len(gaps)) and float(gaps[widest]) > CLIFF_SHARE * fall
    span = max(above - lowest, 1)
    per_layer = 10 ** (-(float(logs[above]) - float(logs[lowest])) / span)
    named = lowest + widest if cliff else lowest
    return Vanishing(
        layer=int(places[named]),
        ratio=10 ** (float(logs[named]) - reference),
        per_layer=per_layer,
        cliff=cliff,
        above=int(places[named + 1 if cliff else above]),
    )


def is_rising(history: FloatArray) -> BoolArray:
    """Tell which layers are on their way up: a zero-initialised branch that wakes.

    Args:
        history: (T, L) gradient norms, oldest first.

    Returns:
        (L,) True where the later half's median is at least twice the earlier half's.
    """
    half = len(history) // 2
    if half == 0:
        return np.zeros(history.shape[1], dtype=np.bool_)
    early, late = np.median(history[:half], axis=0), np.median(history[-half:], axis=0)
    return np.asarray(late >= RISING * early, dtype=np.bool_)
