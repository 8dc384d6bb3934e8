"""Which modules to checkpoint: bytes freed for each operation done again, cheapest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwatch.findings import ROOT
from gradwatch.memory.phases import MIB
from gradwatch.tables import Table

if TYPE_CHECKING:
    from gradwatch.memory.saved import Layer, SavedMemory

GIGA = 1e9
# A module that holds more than this is the model itself: run again, it is all there again.
MOST_OF_ALL = 0.6
WORTH = 0.01
ENOUGH = 0.5
MOST_NAMES = 8
COLUMNS = ("layer", "saved (MiB)", "share (%)", "freed (MiB)", "recompute (GFLOP)", "checkpoint")


def propose(saved: SavedMemory, enough: float = ENOUGH) -> tuple[Layer, ...]:
    """Choose modules to checkpoint, until they free enough.

    A module and one inside it are never both chosen, nor one that is nearly the whole model
    or frees next to nothing.

    Args:
        saved: What a forward saves.
        enough: Share of what is saved that is to be freed.

    Returns:
        The modules, most bytes freed for each operation first.

    Examples:
        >>> from gradwatch.memory.saved import Layer, SavedMemory
        >>> model = SavedMemory(100, (
        ...     Layer("a", 30, 30, 1e9), Layer("b", 30, 30, 1e6), Layer("c", 40, 40, 1e12)))
        >>> [layer.name for layer in propose(model)]
        ['b', 'a']
    """
    bounds = (WORTH * saved.total_bytes, MOST_OF_ALL * saved.total_bytes)
    parts = (layer for layer in saved.layers if layer.name != ROOT)
    able = [layer for layer in parts if bounds[0] <= layer.freed_bytes <= bounds[1]]
    chosen: list[Layer] = []
    freed = 0
    for layer in sorted(able, key=lambda each: each.freed_bytes / (each.flops + 1), reverse=True):
        if freed >= enough * saved.total_bytes:
            break
        if layer.freed_bytes and not any(_related(layer.name, other.name) for other in chosen):
            chosen.append(layer)
            freed += layer.freed_bytes
    return tuple(chosen)


def _related(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def heaviest(saved: SavedMemory, most: int = MOST_NAMES) -> tuple[Layer, ...]:
    """Give the modules whose own operations save most, largest first.

    Args:
        saved: What a forward saves.
        most: Most modules.
    """
    own = [layer for layer in saved.layers if layer.saved_bytes]
    return tuple(sorted(own, key=lambda each: each.saved_bytes, reverse=True)[:most])


def in_words(layers: Sequence[Layer], field: str) -> str:
    """Name modules with a size in MiB, for a finding.

    Args:
        layers: The modules.
        field: ``"saved_bytes"`` or ``"freed_bytes"``.
    """
    told = layers[:MOST_NAMES]
    more = [f"{len(layers) - len(told)} more"] if len(layers) > len(told) else []
    return ", ".join([*(f"{each.name} {getattr(each, field) / MIB:.3g}" for each in told), *more])


def _total(saved: SavedMemory) -> str:
    size = f"{saved.total_bytes / MIB:.4g} MiB"
    return f"over {size}: the graph is too large to be read to its end" if saved.stopped else size


def saved_table(saved: SavedMemory, step: int, rows: int = 20) -> Table:
    """Show what is saved by whom, and what a checkpoint would free.

    Args:
        saved: What a forward saves.
        step: Optimizer step.
        rows: Most rows.
    """
    chosen = [layer.name for layer in propose(saved)]
    first = [layer for layer in saved.layers if layer.name in chosen]
    shown = list(dict.fromkeys((*first, *heaviest(saved, rows))))[:rows]
    shown.sort(key=lambda layer: max(layer.saved_bytes, layer.freed_bytes), reverse=True)
    return Table(
        name="saved",
        title=f"What the forward keeps for the backward: {_total(saved)}",
        step=step,
        columns=COLUMNS,
        rows=tuple(
            (
                layer.name,
                layer.saved_bytes / MIB,
                100 * layer.saved_bytes / saved.total_bytes,
                layer.freed_bytes / MIB,
                layer.flops / GIGA,
                chosen.index(layer.name) + 1 if layer.name in chosen else None,
            )
            for layer in shown
        ),
    )
