"""A profile as tables: phases, layers, kernels, ceilings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwatch.roofline.phases import COMMUNICATION, HIDDEN
from gradwatch.tables import Table

if TYPE_CHECKING:
    from gradwatch.roofline.profile import Profile
    from gradwatch.roofline.verdicts import LayerVerdict
    from gradwatch.tables import Cell

LAYER_COLUMNS = (
    "layer",
    "verdict",
    "time (ms)",
    "gain (% of step)",
    "achieved (GB/s)",
    "achieved (GFLOP/s)",
    "intensity (FLOP/B)",
    "forward (ms)",
    "backward (ms)",
    "kernels",
    "moved (MB)",
    "saved (MB)",
    "why",
)
KERNEL_COLUMNS = (
    "kernel",
    "layer",
    "phase",
    "share (%)",
    "time (ms)",
    "count",
    "median (µs)",
    "what it is for",
    "its output is read at once by",
    "the two could be one",
)
# Share of a step by which its phases may miss it and nothing is said.
MISSED = 0.01
# Parts of other phases: their time is not to be added to the rest.
_WITHIN = {COMMUNICATION: "within backward", HIDDEN: "within communication"}


def tables_of(profile: Profile, step: int) -> list[Table]:
    """Give a profile as tables, layers first.

    Args:
        profile: The profile.
        step: Optimizer step it was made at.

    Returns:
        ``"roofline"``, ``"ceilings"``, ``"kernels"`` and ``"phases"``; those without rows
        are left out.
    """
    tables = (
        _layers(profile, step),
        _ceilings(profile, step),
        _kernels(profile, step),
        _phases(profile, step),
    )
    return [table for table in tables if table.rows]


def _layers(profile: Profile, step: int) -> Table:
    rows = sorted(profile.layers, key=lambda own: -(own.forward_seconds + own.backward_seconds))
    milliseconds = f"{profile.step_seconds * 1e3:,.4g} ms"
    return Table(
        name="roofline",
        title=f"What bounds each layer: {profile.device}, a step of {milliseconds}",
        step=step,
        columns=LAYER_COLUMNS,
        rows=tuple(_layer_row(own) for own in rows),
    )


def _layer_row(own: LayerVerdict) -> tuple[Cell, ...]:
    seconds = own.forward_seconds + own.backward_seconds
    return (
        own.layer,
        own.kind,
        seconds * 1e3,
        own.gain_share * 100,
        own.achieved_bytes_per_second / 1e9,
        own.flops / seconds / 1e9 if seconds else None,
        own.intensity,
        own.forward_seconds * 1e3,
        own.backward_seconds * 1e3,
        own.kernels,
        own.moved_bytes / 1e6,
        own.saved_bytes / 1e6,
        own.reason,
    )


def _ceilings(profile: Profile, step: int) -> Table:
    ceilings = profile.ceilings
    rates = [
        (f"{dtype} matrix products", rate / 1e9, "GFLOP/s")
        for dtype, rate in ceilings.matrix_flops_per_second.items()
    ]
    return Table(
        name="ceilings",
        title=f"What the machine can do, measured: {ceilings.device}",
        step=step,
        columns=("name", "value", "unit"),
        rows=(
            ("copy, read + written", ceilings.copy_bytes_per_second / 1e9, "GB/s"),
            *rates,
            ("smallest kernel", ceilings.launch_seconds * 1e6, "µs"),
        ),
    )


def _kernels(profile: Profile, step: int) -> Table:
    rows = tuple(
        (
            own.name,
            own.layer,
            own.phase,
            own.share * 100,
            own.total_seconds * 1e3,
            own.count,
            own.median_seconds * 1e6,
            own.purpose,
            own.next_kernel or None,
            "yes" if own.fusable else "no",
        )
        for own in profile.kernels
    )
    title = f"The {len(rows)} kernels with the largest share of a step"
    return Table(name="kernels", title=title, step=step, columns=KERNEL_COLUMNS, rows=rows)


def _phases(profile: Profile, step: int) -> Table:
    whole = sum(value for name, value in profile.phases.items() if name not in _WITHIN)
    rows = tuple(
        (
            name.replace("_", " "),
            seconds * 1e3,
            seconds / whole * 100 if whole else None,
            _WITHIN.get(name),
        )
        for name, seconds in profile.phases.items()
    )
    title = f"Where a step of {profile.step_seconds * 1e3:,.4g} ms goes, without the profiler"
    # Each is a median over the steps: of steps that differ, those of the parts miss the whole's.
    if abs(whole - profile.step_seconds) > MISSED * profile.step_seconds:
        title += f" (each a median; together {whole * 1e3:,.4g} ms, as no step is like another)"
    return Table(
        name="phases",
        title=title,
        step=step,
        columns=("phase", "time (ms)", "share (%)", "note"),
        rows=rows,
    )
