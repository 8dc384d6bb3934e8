"""Two pictures of the gradient flow: layers × steps, and the profile over depth.

Drawn with matplotlib's Agg canvas through figures of their own: no pyplot, no global state,
no backend of the user's touched. Matplotlib is imported by the first picture, not before.
Colours are viridis and Okabe–Ito's, told apart by colour-blind readers too.
"""

import logging
from typing import TYPE_CHECKING

import numpy as np

from gradwatch.history import Grid, History
from gradwatch.readings import FloatArray, FlowReading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from PIL.Image import Image

NON_FINITE = "#d55e00"
ZERO = "#000000"
ABSENT = "#e3e3e3"
LINE = "#0072b2"
BAND = "#9ecae1"
DPI = 100
WIDTH = 9.0
PROFILE_HEIGHT = 4.6
MOST_LABELS = 20
MOST_ROWS = 400
LONGEST_LABEL = 34
# Narrower scales would paint the noise of a healthy run in all colours.
LEAST_DECADES = 2.0
# Below the smallest float32 there is no gradient norm left to tell apart.
SMALLEST = 1e-45


def heatmap(history: History) -> "Image":
    """Draw log10 of the gradient norm, one row a layer in execution order, one column a step.

    Args:
        history: Gradient norms of the run so far; may be empty.

    Returns:
        An RGB picture; non-finite norms, exact zeros and missing gradients each have a
        colour outside the scale, named in the legend where they occur.
    """
    grid = history.grid()
    rows = max(len(grid.layers), 1)
    height = float(np.clip(1.6 + 0.2 * rows, 3.2, 8.0))
    figure = _figure(WIDTH, height)
    left = (0.4 + 0.056 * _longest(grid.layers)) / WIDTH
    axes = figure.add_axes((left, 0.5 / height, 0.88 - left, 1 - 1.0 / height))
    scale = _paint(axes, grid)
    _label_layers(axes, grid.layers)
    _label_steps(axes, grid.steps)
    axes.set_title("Gradient norm by layer and step", fontsize=10, loc="left", y=1.005)
    bar = figure.colorbar(scale, cax=figure.add_axes((0.9, 0.5 / height, 0.02, 1 - 1.0 / height)))
    bar.set_label("log10 of the gradient norm", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return _render(figure)


def profile(flow: FlowReading, history: History) -> "Image":
    """Draw each layer's gradient norm over depth, with the run's range behind it.

    Args:
        flow: Profile of the step to show.
        history: Gradient norms of the run; its 10th to 90th percentile is the band.

    Returns:
        An RGB picture with a logarithmic norm axis; layers that have no place on it
        (non-finite, zero, no gradient) are marked at its lower edge.
    """
    figure = _figure(WIDTH, PROFILE_HEIGHT)
    # Names stand aslant: what they take of the width and height grows with their length.
    left = (0.7 + 0.02 * _longest(flow.layers)) / WIDTH
    bottom = (0.5 + 0.037 * _longest(flow.layers)) / PROFILE_HEIGHT
    axes = figure.add_axes((left, bottom, 0.97 - left, 0.92 - bottom))
    axes.set_yscale("log")
    # Powers set as formulas cost more than the rest of the picture.
    axes.yaxis.set_major_formatter("{x:.0e}")
    axes.yaxis.set_minor_formatter("")
    depth = np.arange(len(flow.layers), dtype=np.float64)
    _draw_band(axes, depth, flow.layers, history.grid())
    shown = np.isfinite(flow.grad_norm) & (flow.grad_norm > 0)
    line = np.where(shown, flow.grad_norm, np.nan)
    marker = "o" if len(depth) <= MOST_LABELS else ""
    axes.plot(depth, line, color=LINE, lw=1.6, marker=marker, ms=4, label="last recorded step")
    _mark_edge(axes, depth, flow)
    _label_depth(axes, flow.layers)
    axes.set_ylabel("gradient norm", fontsize=9)
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.set_title("Gradient flow over depth", fontsize=10, loc="left", y=1.01)
    axes.legend(fontsize=8, loc="best", framealpha=0.85)
    return _render(figure)


def _figure(width_inches: float, height_inches: float) -> "Figure":
    # The first import on a machine builds a font cache and says so on a logger of its own.
    fonts = logging.getLogger("matplotlib.font_manager")
    level = fonts.level
    fonts.setLevel(logging.ERROR)
    try:
        from matplotlib.figure import Figure
    finally:
        fonts.setLevel(level)
    return Figure(figsize=(width_inches, height_inches), dpi=DPI)


def _render(figure: "Figure") -> "Image":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return Image.fromarray(pixels).convert("RGB")


def _paint(axes: "Axes", grid: Grid) -> "ScalarMappable":
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize, to_rgb
    from matplotlib.patches import Patch

    values = _pool(grid.norms) if grid.norms.size else np.full((1, 1), np.nan)
    marks = {
        "NaN or Inf": np.isposinf(values),
        "exactly 0": values == 0,
        "no gradient": np.isnan(values),
    }
    usable = ~np.logical_or.reduce(list(marks.values()))
    logs = np.log10(np.maximum(np.where(usable, values, 1.0), SMALLEST))
    low, high = _limits(logs[usable])
    colours = colormaps["viridis"]((logs - low) / (high - low))[..., :3]
    patches = []
    for (name, where), colour in zip(marks.items(), (NON_FINITE, ZERO, ABSENT), strict=True):
        colours[where] = to_rgb(colour)
        if where.any():
            patches.append(Patch(facecolor=colour, edgecolor="#888888", label=name))
    if patches:
        corner = (1.0, 1.0)
        axes.legend(
            handles=patches, loc="lower right", bbox_to_anchor=corner, borderpad=0.2,
            fontsize=8, ncols=3, frameon=False,
        )  # fmt: skip
    box = (-0.5, max(len(grid.steps), 1) - 0.5, max(len(grid.layers), 1) - 0.5, -0.5)
    pixels = (colours * 255).astype(np.uint8)
    axes.imshow(pixels, aspect="auto", interpolation="nearest", extent=box)
    return ScalarMappable(Normalize(low, high), "viridis")


def _pool(norms: FloatArray) -> FloatArray:
    """Join neighbouring layers until each row has its pixel; the worst of a group shows."""
    size = -(-len(norms) // MOST_ROWS)
    if size == 1:
        return norms
    rest = np.full((-len(norms) % size, norms.shape[1]), np.nan)
    groups = np.vstack([norms, rest]).reshape(-1, size, norms.shape[1])
    finite = np.where(np.isfinite(groups), groups, 0.0)
    count = np.isfinite(groups).sum(axis=1)
    mean = np.where(count > 0, finite.sum(axis=1) / np.maximum(count, 1), np.nan)
    mean[(groups == 0).any(axis=1)] = 0.0
    mean[np.isposinf(groups).any(axis=1)] = np.inf
    return mean


def _limits(logs: FloatArray) -> tuple[float, float]:
    if not logs.size:
        return -1.0, 1.0
    low, high = np.percentile(logs, [0.5, 99.5])
    return float(low), float(max(high, low + LEAST_DECADES))


def _draw_band(axes: "Axes", depth: FloatArray, layers: tuple[str, ...], grid: Grid) -> None:
    place = {layer: row for row, layer in enumerate(grid.layers)}
    known = [place[layer] for layer in layers if layer in place]
    if len(known) != len(layers) or not grid.steps:
        return
    # A hundred columns settle a percentile, and sorting all of them costs the most.
    norms = grid.norms[known, :: len(grid.steps) // 100 + 1]
    norms = np.where(np.isfinite(norms) & (norms > 0), norms, np.nan)
    seen = np.isfinite(norms).any(axis=1)
    if not seen.any():
        return
    low, middle, high = np.full((3, len(layers)), np.nan)
    low[seen], middle[seen], high[seen] = np.nanpercentile(norms[seen], [10, 50, 90], axis=1)
    axes.fill_between(depth, low, high, color=BAND, alpha=0.6, lw=0, label="run so far, p10–p90")
    axes.plot(depth, middle, color="#555555", lw=1, ls="--", label="run so far, median")


def _mark_edge(axes: "Axes", depth: FloatArray, flow: FlowReading) -> None:
    edge = axes.get_xaxis_transform()
    for name, where, colour, marker in (
        ("NaN or Inf", np.isinf(flow.grad_norm), NON_FINITE, "X"),
        ("exactly 0", flow.grad_norm == 0, ZERO, "v"),
        ("no gradient", np.isnan(flow.grad_norm), "#999999", "|"),
    ):
        if where.any():
            axes.scatter(
                depth[where], np.full(where.sum(), 0.03), transform=edge, color=colour,
                marker=marker, s=36, label=f"{name} ({where.sum()})", zorder=3, clip_on=False,
            )  # fmt: skip


def _label_layers(axes: "Axes", layers: tuple[str, ...]) -> None:
    places = _spread(len(layers), MOST_LABELS)
    axes.set_yticks(places, [_short(layers[i]) for i in places], fontsize=7)
    axes.set_ylabel(f"layer in execution order ({len(layers)} in all)", fontsize=9)


def _label_steps(axes: "Axes", steps: list[int]) -> None:
    places = _spread(len(steps), 7)
    axes.set_xticks(places, [f"{steps[i]:,}" for i in places], fontsize=8)
    axes.set_xlabel("step", fontsize=9)


def _label_depth(axes: "Axes", layers: tuple[str, ...]) -> None:
    places = _spread(len(layers), 14)
    names = [_short(layers[i]) for i in places]
    axes.set_xticks(places, names, fontsize=7, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_xlabel(f"layer in execution order ({len(layers)} in all)", fontsize=9)
    axes.set_xlim(-0.5, max(len(layers) - 0.5, 0.5))


def _spread(count: int, most: int) -> list[int]:
    """Give evenly spaced places, the first and the last among them."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, most)).round()})


def _longest(layers: tuple[str, ...]) -> int:
    return max((len(_short(layer)) for layer in layers), default=0)


def _short(layer: str) -> str:
    """Keep the end of a name: siblings differ there."""
    return layer if len(layer) <= LONGEST_LABEL else "…" + layer[1 - LONGEST_LABEL :]
