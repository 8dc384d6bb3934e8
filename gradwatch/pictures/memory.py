"""Memory at the four borders of a step, and what each phase adds or gives back.

Shapes: C bins of steps.
"""

from typing import NamedTuple

import numpy as np

from gradwatch.history import History, ScalarBins
from gradwatch.pictures.panel import Panel, Timeline
from gradwatch.pictures.picture import Entry, Picture
from gradwatch.pictures.scale import linear_scale
from gradwatch.pictures.theme import LIGHT, Theme, blend
from gradwatch.readings import FloatArray, IntArray

CAPTION = (
    "Above, what is in use before the forward, after it, after the backward and after the"
    " step; below, what each phase adds (above zero) and gives back (below zero)."
)
PHASES = ("forward", "backward", "step")
KINDS = {
    "allocated": ("mem/accelerator", "Accelerator memory by phase", "allocated, MiB"),
    "process": ("mem/process", "Process memory by phase", "resident, MiB"),
}
STACK_SHARE = 0.75
LEVELS = ("before forward", "after forward", "after backward", "after step")


class Memory(NamedTuple):
    """What is drawn of one kind of memory, in MiB.

    Attributes:
        steps: (C,) first and (C,) last step of each bin.
        levels: (4, C) at the borders, in the order of `LEVELS`.
        changes: (3, C) over the phases.
        peak: (C,) highest so far; NaN where unknown.
    """

    steps: tuple[IntArray, IntArray]
    levels: FloatArray
    changes: FloatArray
    peak: FloatArray


def memory_kinds(history: History) -> list[str]:
    """Give the kinds of memory that were recorded: ``"allocated"``, ``"process"``."""
    return [kind for kind in KINDS if history.scalar(f"mem/{kind}_MiB") is not None]


def memory(history: History, *, kind: str = "allocated", theme: Theme = LIGHT) -> Picture:
    """Draw the levels at the four borders over the run, and the changes stacked by phase.

    Args:
        history: The run so far; may be empty.
        kind: ``"allocated"`` (accelerator) or ``"process"``.
        theme: Colours.
    """
    name, title, unit = KINDS[kind]
    numbers = _measure(history, kind)
    line = Timeline(name, title, CAPTION, steps=numbers.steps, heights=(190, 150), theme=theme)
    _draw_levels(line, numbers, unit)
    _draw_changes(line, numbers)
    return line.finish()


def _measure(history: History, kind: str) -> Memory:
    last = history.scalar(f"mem/{kind}_MiB")
    count = 0 if last is None else len(last.first)
    empty = np.empty(0, dtype=np.int64)
    steps = (empty, empty) if last is None else (last.first, last.last)
    keys = [f"mem/{kind}_{phase}_MiB" for phase in PHASES]
    changes = np.stack([_latest(history.scalar(key), count) for key in keys])
    end = _latest(last, count)
    # The level is told at the last border; the changes lead back to the three before it.
    after = [end - changes[index:].sum(axis=0) for index in range(len(PHASES))]
    peak = "mem/process_peak_MiB" if kind == "process" else "mem/peak_MiB"
    return Memory(steps, np.stack([*after, end]), changes, _latest(history.scalar(peak), count))


def _latest(bins: ScalarBins | None, count: int) -> FloatArray:
    return np.full(count, np.nan) if bins is None else bins.latest


def _draw_levels(line: Timeline, numbers: Memory, unit: str) -> None:
    theme, levels = line.canvas.theme, numbers.levels
    known = levels[np.isfinite(levels)]
    near_zero = not known.size or known.min() < known.max() / 2
    # What hardly changes next to its size would be one flat line on an axis from zero.
    scale = linear_scale(levels, numbers.peak, zero=bool(near_zero))
    colours = (theme.muted, *theme.lines[:3])
    kinds = ("dashed", "line", "line", "line")
    named = [
        Entry(*each) for each in zip(LEVELS, colours, kinds, strict=True)
    ]  # fmt: skip
    peak = [Entry("peak", theme.text, "dashed")] if np.isfinite(numbers.peak).any() else []
    panel = line.panel(scale, unit, [*peak, *named])
    ground = np.where(np.isfinite(levels[0]), scale.low, np.nan)
    panel.band(line.places, ground, levels[0], theme.muted)
    for level, colour, kind in zip(levels, colours, kinds, strict=True):
        panel.line(line.places, level, colour, dashed=kind == "dashed", width=1.6)
    panel.line(line.places, numbers.peak, theme.text, dashed=True, width=1.2)


def _draw_changes(line: Timeline, numbers: Memory) -> None:
    theme = line.canvas.theme
    known = np.nan_to_num(numbers.changes)
    added, released = np.maximum(known, 0), np.minimum(known, 0)
    scale = linear_scale(added.sum(axis=0), released.sum(axis=0))
    colours = [blend(colour, theme.ground, STACK_SHARE) for colour in theme.lines]
    named = [Entry(phase, colours[index]) for index, phase in enumerate(PHASES)]
    panel = line.panel(scale, "change, MiB", named)
    for index in range(len(PHASES)):
        for part in (added, released):
            _stack(panel, line.places, part, index)
    panel.line(np.array([0.0, 1.0]), np.zeros(2), theme.muted, width=1)


def _stack(panel: Panel, places: FloatArray, part: FloatArray, index: int) -> None:
    base = part[:index].sum(axis=0)
    end = np.where(part[index] == 0, np.nan, base + part[index])
    colour = panel.canvas.theme.lines[index]
    panel.band(places, np.where(np.isnan(end), np.nan, base), end, colour, STACK_SHARE)
