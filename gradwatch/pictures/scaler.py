"""The gradient scaler's scale, and the steps that were skipped."""

import math

import numpy as np

from gradwatch.history import History
from gradwatch.pictures.lettering import power
from gradwatch.pictures.panel import Timeline
from gradwatch.pictures.picture import Picture
from gradwatch.pictures.scale import Scale, Tick, linear_scale, log_scale
from gradwatch.pictures.series import Series, draw, entries, extremes, find, steps_of
from gradwatch.pictures.theme import LIGHT, Theme

TITLE, COUNTS = "Loss scale and skipped steps", "Skipped steps"
CAPTION = (
    "The scale halves at an overflow and doubles after a quiet stretch; below, how many steps"
    " had a non-finite gradient and how many were skipped so far: few at the start are normal."
)
COUNTED = "How many steps had a non-finite gradient so far, and how many were skipped."
KEYS = ("grad/loss_scale", "grad/skipped", "grad/non_finite")
MOST_TICKS = 6


def loss_scale(history: History, *, theme: Theme = LIGHT) -> Picture:
    """Draw the loss scale where there is one, and the counts of skipped and bad steps.

    Args:
        history: The run so far; may be empty.
        theme: Colours.
    """
    scale = find(history, KEYS[0], theme)
    skipped = find(history, KEYS[1], theme, first_colour=1)
    bad = find(history, KEYS[2], theme, first_colour=3)
    line = Timeline(
        "grad/loss_scale",
        TITLE if scale else COUNTS,
        CAPTION if scale else COUNTED,
        steps=steps_of(scale, skipped, bad),
        heights=(150, 110) if scale else (150,),
        theme=theme,
    )
    if scale:
        axis = log_scale(*extremes(scale))
        draw(line.panel(axis, "loss scale", ticks=_powers_of_two(axis)), scale)
    counted = linear_scale(*extremes(skipped, bad), np.array([3.0]))
    named = [*entries(bad, "non-finite", "dashed"), *entries(skipped, "skipped")]
    counts = line.panel(counted, "steps so far", named)
    draw(counts, skipped)
    draw(counts, bad, dashed=True)
    return line.finish()


def has_counts(history: History) -> bool:
    """Say whether a step was skipped or bad, or a scaler is at work."""
    series: list[list[Series]] = [find(history, key, LIGHT) for key in KEYS]
    counted = extremes(*series[1:])
    return bool(series[0]) or any(np.nan_to_num(values).any() for values in counted)


def _powers_of_two(scale: Scale) -> list[Tick]:
    low, high = math.ceil(math.log2(scale.low)), math.floor(math.log2(scale.high))
    stride = max(1, math.ceil((high - low + 1) / MOST_TICKS))
    exponents = [exponent for exponent in range(low, high + 1) if exponent % stride == 0]
    places = scale.places(np.asarray([2.0**exponent for exponent in exponents]))
    labels = (power(exponent, 2) for exponent in exponents)
    return [Tick(float(place), label) for place, label in zip(places, labels, strict=True)]
