"""Layer profile → metric keys: every layer of a small model, the telling ones of a big one.

A key is ``<family>/<layer>`` with the dots of the layer's name written as slashes
(``encoder.0.attn`` → ``grad_norm/encoder/0/attn``): W&B ignores ``define_metric(summary=...)``
for dotted names. A dotted name typed into W&B's regex search still finds its key, as the
dot matches the slash; findings, alerts and tables keep the dotted name.

Bytes per row: at most 64 layers × 4 families in a small model, at most (16 layers × 4
families + 16 groups by depth) in a bigger one: 80 values, whatever the model's size.
"""

from typing import NamedTuple

import numpy as np

from gradwatch.printable import printable
from gradwatch.readings import FloatArray, FlowReading

FAMILIES = ("grad_norm", "weight_norm", "update_ratio", "act_grad")
LIMIT = 64
WORST = 16
DEPTHS = 16
WINDOW = 32
# A healthy profile spreads over about a decade; a third of one keeps two equals from swapping.
HEALTHY_DECADES = 1.0
HYSTERESIS_DECADES = 0.3
SMALLEST = 1e-45


class Watchlist(NamedTuple):
    """What is known of L layers over time, to tell which of them deserve a series.

    Attributes:
        layers: (L,) layer names.
        recent: (≤ 32, L) log10 of the last recorded gradient norms; NaN where there was none.
        peak: (L,) largest distance seen so far, in decades.
        kept: Indices of the layers that have a series, in depth order.
    """

    layers: tuple[str, ...]
    recent: FloatArray
    peak: FloatArray
    kept: tuple[int, ...] = ()

    @property
    def median(self) -> FloatArray:
        """(L,) running median of the gradient norm, over the last 32 records."""
        return _median(self.recent)


def layer_key(family: str, layer: str) -> str:
    """Give the metric key of a layer.

    Args:
        family: First part of the key, such as ``"grad_norm"``.
        layer: Layer name as the user wrote it.

    Examples:
        >>> layer_key("grad_norm", "encoder.0.attn")
        'grad_norm/encoder/0/attn'
    """
    return f"{family}/{printable(layer).replace('.', '/')}"


def init(layers: tuple[str, ...]) -> Watchlist:
    """Start with nothing known of the layers."""
    return Watchlist(layers, np.empty((0, len(layers))), np.zeros(len(layers)))


def update(watchlist: Watchlist, flow: FlowReading, worst: int = WORST) -> Watchlist:
    """Take in one profile; start anew where the layers are not the same.

    A layer's distance is the larger of two, in decades: from its own running median, and
    from the median of the whole profile beyond the spread a healthy one has. The layers with
    the largest distance ever seen are kept; another one takes a place only where it is clearly
    further out, so that series end and begin rarely.

    Args:
        watchlist: What was known before.
        flow: Profile of the step.
        worst: Number of layers that are kept.

    Returns:
        What is known now.
    """
    if watchlist.layers != flow.layers:
        watchlist = init(flow.layers)
    logs = _log10(flow.grad_norm)
    over_time = np.abs(logs - _log10(watchlist.median))
    over_depth = np.abs(logs - _median_of(logs)) - HEALTHY_DECADES
    distance = np.nan_to_num(np.fmax(np.fmax(over_time, over_depth), 0.0))
    peak = np.maximum(watchlist.peak, distance)
    recent = np.vstack([watchlist.recent, logs])[-WINDOW:]
    return Watchlist(flow.layers, recent, peak, _keep(peak, watchlist.kept, worst))


def layer_scalars(
    flow: FlowReading, limit: int | None = LIMIT, watchlist: Watchlist | None = None
) -> dict[str, float]:
    """Give the per-layer values of one step under their metric keys; finite ones only.

    Args:
        flow: Profile of the step.
        limit: Most layers that are all written; of a model with more, the kept ones are, and
            the median gradient norm of 16 groups by depth. None writes every layer.
        watchlist: What is known of the layers over time; without it a model over the limit
            is judged by this step alone.

    Examples:
        >>> flow = FlowReading(
        ...     layers=("net.0", "net.2"),
        ...     grad_norm=np.array([0.5, np.nan]),
        ...     weight_norm=np.array([2.0, 3.0]),
        ...     has_grad=np.array([True, False]),
        ...     frozen=np.array([False, False]),
        ... )
        >>> layer_scalars(flow)
        {'grad_norm/net/0': 0.5, 'weight_norm/net/0': 2.0, 'weight_norm/net/2': 3.0}
    """
    if limit is None or len(flow.layers) <= limit:
        return _scalars(flow, range(len(flow.layers)))
    known = watchlist or update(init(flow.layers), flow)
    return {**_scalars(flow, known.kept), **_depth_scalars(flow.grad_norm)}


def _scalars(flow: FlowReading, chosen: range | tuple[int, ...]) -> dict[str, float]:
    scalars: dict[str, float] = {}
    for family in FAMILIES:
        values: FloatArray | None = getattr(flow, family)
        if values is None:
            continue
        finite = np.isfinite(values)
        scalars.update(
            (layer_key(family, flow.layers[i]), float(values[i])) for i in chosen if finite[i]
        )
    return scalars


def _depth_scalars(grad_norm: FloatArray) -> dict[str, float]:
    medians = (_median_of(group) for group in np.array_split(grad_norm, DEPTHS))
    return {
        f"grad_norm_depth/{depth:02d}": median
        for depth, median in enumerate(medians)
        if np.isfinite(median)
    }


def _keep(peak: FloatArray, kept: tuple[int, ...], worst: int) -> tuple[int, ...]:
    standing = peak.copy()
    standing[list(kept)] += HYSTERESIS_DECADES
    return tuple(sorted(int(i) for i in np.argsort(-standing, kind="stable")[:worst]))


def _log10(norms: FloatArray) -> FloatArray:
    usable = np.isfinite(norms)
    return np.where(usable, np.log10(np.where(usable, np.maximum(norms, SMALLEST), 1.0)), np.nan)


def _median(logs: FloatArray) -> FloatArray:
    seen = np.asarray(np.isfinite(logs).any(axis=0))
    medians = np.full(logs.shape[1], np.nan)
    # numpy warns of columns without a number, and a warning is an error where users say so.
    medians[seen] = 10 ** np.nanmedian(logs[:, seen], axis=0)
    return medians


def _median_of(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("nan")
