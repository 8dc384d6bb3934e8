"""Records to draw from, and a look at the colours of what was drawn."""

from collections.abc import Mapping, Sequence

import numpy as np

from gradwatch.history import History
from gradwatch.pictures import Picture
from gradwatch.pictures.theme import Colour
from gradwatch.readings import FloatArray, FlowReading, StepRecord


def make_record(
    step: int,
    norms: FloatArray | Sequence[float] | None = None,
    layers: Sequence[str] = (),
    *,
    scalars: Mapping[str, float] | None = None,
    ratios: FloatArray | None = None,
) -> StepRecord:
    flow = None
    if norms is not None:
        values = np.asarray(norms, dtype=np.float64)
        flow = FlowReading(
            layers=tuple(layers) or tuple(f"net.{i}" for i in range(len(values))),
            grad_norm=values,
            weight_norm=np.ones(len(values)),
            has_grad=~np.isnan(values),
            frozen=np.zeros(len(values), dtype=np.bool_),
            update_ratio=ratios,
        )
    return StepRecord(step=step, log_step=step, scalars=dict(scalars or {}), flow=flow)


def make_history(
    steps: int, layers: Sequence[str] | int, *, columns: int = 400, seed: int = 0
) -> History:
    """Record a healthy run: norms around 1e-2, ratios around 1e-3."""
    history, rng = History(columns), np.random.default_rng(seed)
    names = [f"net.{i}" for i in range(layers)] if isinstance(layers, int) else list(layers)
    for step in range(steps):
        norms = 10 ** rng.normal(-2, 0.3, len(names))
        history.add(make_record(step, norms, names, ratios=norms / 10))
    return history


def make_blocks(blocks: int, parts: int) -> list[str]:
    """Name the layers of a transformer-like model."""
    inner = [f"model.blocks.{b}.part{p}" for b in range(blocks) for p in range(parts)]
    return ["embed", *inner, "head"]


def pixels(picture: Picture) -> FloatArray:
    return np.asarray(picture.image, dtype=np.float64)


def colour_at(picture: Picture, across: float, down: float) -> Colour:
    """Give the colour at a place of the picture's box, both fractions of it."""
    left, top, right, bottom = picture.box
    x = (left + across * (right - left)) * picture.image.width
    y = (top + down * (bottom - top)) * picture.image.height
    found = picture.image.getpixel((int(x), int(y)))
    assert isinstance(found, tuple)
    return found[0], found[1], found[2]


def share_of(picture: Picture, colour: Colour) -> float:
    """Give the share of the picture's pixels that have exactly the colour."""
    return float((pixels(picture) == np.asarray(colour)).all(axis=2).mean())


def count_in_box(picture: Picture, colour: Colour) -> int:
    """Count the pixels of the colour within the box."""
    width, height = picture.image.size
    left, top, right, bottom = picture.box
    across = slice(round(left * width), round(right * width))
    down = slice(round(top * height), round(bottom * height))
    return int((pixels(picture)[down, across] == np.asarray(colour)).all(axis=2).sum())
