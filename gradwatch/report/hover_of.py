"""Which numbers of the run lie under which picture."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradwatch.history import History, LayerBins, ScalarBins
from gradwatch.pictures import Picture
from gradwatch.report.hover import (
    ABSENT,
    MARKS,
    Numbers,
    Series,
    pack_grid,
    pack_series,
    row_names,
    spans,
)

MOST_SERIES = 8
# Scalars by what their keys begin with; pictures over steps that draw others have no numbers.
KEYS: Mapping[str, tuple[str, ...]] = {
    "flow/total_norm": ("grad/norm", "grad/clip_rate"),
    "grad/loss_scale": ("grad/loss_scale", "grad/skipped", "grad/non_finite"),
    "lr/signal": ("lr/",),
    "mem/accelerator": ("mem/allocated", "mem/peak_MiB"),
    "mem/process": ("mem/process",),
}


def hover_of(history: History, picture: Picture) -> Mapping[str, Any]:
    """Give what a picture says under the pointer.

    Args:
        history: The run it was drawn from.
        picture: The picture.

    Returns:
        What `report.js` reads; empty where the picture shows no numbers of the history.
    """
    numbers = OWN.get(picture.name, _scalars)(history, picture)
    return {"box": picture.box, **numbers} if numbers else {}


def _cells(history: History, picture: Picture) -> Mapping[str, Any]:
    bins = history.layers()
    if not picture.rows:
        return {}
    return {
        "columns": picture.columns,
        "rows": row_names(bins.layers, picture.rows),
        "steps": spans(bins.first, bins.last),
        "unit": "gradient norm",
        "absent": ABSENT,
        **pack_grid(bins.low, bins.high, bins.bad, bins.zero, picture.rows),
    }


def _depth(history: History, picture: Picture) -> Mapping[str, Any]:  # noqa: ARG001 - as its kin
    """Give each layer its place over depth: what it did over the run, and last."""
    bins = history.layers()
    if not bins.layers:
        return {}
    last = np.where(np.isfinite(bins.latest), bins.latest, np.nan)
    low, high = np.fmin.reduce(bins.low, axis=1), np.fmax.reduce(bins.high, axis=1)
    return {
        "columns": len(bins.layers),
        "labels": _names_with_marks(bins),
        **pack_series([Series("last", last, last), Series("over the run", low, high)]),
    }


def _names_with_marks(bins: LayerBins) -> list[str]:
    bad, zero = (np.logical_or.reduce(marks, axis=1) for marks in (bins.bad, bins.zero))
    seen = zip(bins.layers, bad.tolist(), zero.tolist(), strict=True)
    return [
        "\n".join([layer, *(mark for mark, is_so in zip(MARKS, marks, strict=True) if is_so)])
        for layer, *marks in seen
    ]


def _ratios(history: History, picture: Picture) -> Mapping[str, Any]:
    bins = history.layers("update_ratio")
    low, high = _over_layers(bins.low, np.fmin), _over_layers(bins.high, np.fmax)
    return _over_steps(picture, bins, [Series("update/weight ratio, all layers", low, high)])


def _over_layers(values: Numbers, join: np.ufunc) -> Numbers:
    joined: Numbers = join.reduce(values, axis=0)
    return joined


def _scalars(history: History, picture: Picture) -> Mapping[str, Any]:
    found = {key: history.scalar(key) for key in history.keys()}  # noqa: SIM118 - a method
    begins = KEYS.get(picture.name, ())
    shown = {key: bins for key, bins in found.items() if bins and key.startswith(begins)}
    series = [Series(key, bins.low, bins.high) for key, bins in shown.items()]
    return _over_steps(picture, next(iter(shown.values()), None), series[:MOST_SERIES])


def _over_steps(
    picture: Picture, axis: LayerBins | ScalarBins | None, series: Sequence[Series]
) -> Mapping[str, Any]:
    if axis is None or not series or len(axis.first) != picture.columns:
        return {}
    steps = spans(axis.first, axis.last)
    return {"columns": picture.columns, "steps": steps, **pack_series(series)}


OWN: Mapping[str, Callable[[History, Picture], Mapping[str, Any]]] = {
    "flow/heatmap": _cells,
    "flow/profile": _depth,
    "flow/update_ratio": _ratios,
}
