"""From what a study saw to a profile: medians over its steps, verdicts, the largest kernels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from gradwatch.roofline import phases
from gradwatch.roofline.ceilings import Ceilings
from gradwatch.roofline.costs import Pair
from gradwatch.roofline.evidence import Evidence
from gradwatch.roofline.layer_times import judge_layers
from gradwatch.roofline.profile import KernelRow, Profile
from gradwatch.roofline.purposes import could_be_one, purpose_of
from gradwatch.roofline.timeline import Launch, Timeline
from gradwatch.roofline.verdicts import LayerVerdict

TOP_KERNELS = 20
DOUBTFUL = 1.2
LONG_SECONDS = 1e-3


def dtypes_of(evidence: Evidence) -> tuple[str, ...]:
    """Give the dtypes whose matrix rates are needed, float32 first.

    Args:
        evidence: What a study saw.
    """
    return ("float32", *sorted(_used_dtypes(evidence) - {"float32"}))


def _used_dtypes(evidence: Evidence) -> set[str]:
    return {
        dtype
        for cost in evidence.costs.values()
        for phase in (cost.forward, cost.backward)
        for dtype in phase.matrix_flops
    }


def assemble(evidence: Evidence, ceilings: Ceilings) -> Profile:
    """Make a profile of what a study saw.

    Args:
        evidence: The study's.
        ceilings: What the machine can do.

    Returns:
        The profile; what was not seen is left out and stands in its notes.
    """
    timed = [phases.sum_phases(step) for step in evidence.timed]
    step_seconds = _median(step[-1].seconds - step[0].seconds for step in evidence.timed)
    lines = evidence.timelines
    layers = judge_layers(evidence, ceilings, step_seconds)
    return Profile(
        device=ceilings.device,
        steps=len(lines),
        step_seconds=step_seconds,
        phases=_medians(timed) | _communication(lines),
        layers=layers,
        kernels=_kernel_rows(evidence),
        ceilings=ceilings,
        kernel_seconds=tuple(launch.seconds for launch in lines[-1].launches) if lines else (),
        traced_phases=_medians([line.phase_seconds for line in lines]),
        overhead_seconds=evidence.extra_seconds,
        notes=(*evidence.notes, *_blind(evidence.blocked), *_notes_on(ceilings, layers, evidence)),
    )


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return median(known) if known else 0.0


def _medians(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: _median(step.get(name, 0.0) for step in steps) for name in names}


def _communication(lines: Sequence[Timeline]) -> dict[str, float]:
    """Give how long gradients travelled, and how much of that kernels ran beside."""
    if not any(line.communication for line in lines):
        return {}
    travelled = [phases.union(line.communication) for line in lines]
    busy = [phases.union(_intervals(line.launches)) for line in lines]
    return {
        phases.COMMUNICATION: _median(phases.total(own) for own in travelled),
        phases.HIDDEN: _median(
            phases.overlap(own, others) for own, others in zip(travelled, busy, strict=True)
        ),
    }


def _intervals(launches: Iterable[Launch]) -> list[phases.Interval]:
    return [
        (launch.start, launch.start + launch.seconds)
        for launch in launches
        if not launch.name.startswith("nccl")
    ]


def _blind(blocked: Mapping[str, str]) -> list[str]:
    reasons = Counter(blocked.values())
    return [f"{count} module(s) not looked into: {why}" for why, count in reasons.items()]


def _notes_on(ceilings: Ceilings, layers: Sequence[LayerVerdict], evidence: Evidence) -> list[str]:
    strange = ", ".join(sorted(_used_dtypes(evidence) - {*ceilings.matrix_flops_per_second}))
    told = [f"products in {strange} are held against another type's rate: no ceiling is known"]
    return [*(told if strange else []), *_too_low(layers, ceilings)]


def _too_low(layers: Sequence[LayerVerdict], ceilings: Ceilings) -> list[str]:
    """Doubt ceilings that a long layer lies well above: the machine was busy when measured."""
    ceiling = max(ceilings.matrix_flops_per_second.values())
    rates = {
        own.flops / (own.forward_seconds + own.backward_seconds): own.layer
        for own in layers
        if own.kind == "compute-bound" and own.forward_seconds + own.backward_seconds > LONG_SECONDS
    }
    best = max(rates, default=0.0)
    if best < DOUBTFUL * ceiling:
        return []
    reached, known = f"{best / 1e9:,.3g} GFLOP/s", f"{ceiling / 1e9:,.3g}"
    doubt = (
        f"{rates[best]} reaches {reached}, above the {known} that were measured as the ceiling: "
        "the machine was busy then, or is another one now; refresh_ceilings=True measures again"
    )
    return [doubt]


def _kernel_rows(evidence: Evidence) -> tuple[KernelRow, ...]:
    lines = evidence.timelines
    groups: dict[tuple[str, str], list[Launch]] = defaultdict(list)
    for line in lines:
        for launch in line.launches:
            groups[launch.name, launch.owner.phase].append(launch)
    whole = sum(sum(line.phase_seconds.values()) for line in lines)
    rows = [_kernel_row(own, evidence, whole) for own in groups.values()]
    return tuple(sorted(rows, key=lambda row: -row.total_seconds)[:TOP_KERNELS])


def _kernel_row(own: Sequence[Launch], evidence: Evidence, whole_seconds: float) -> KernelRow:
    """Describe one kernel in one phase.

    Args:
        own: Its launches in all traced steps.
        evidence: What the study saw.
        whole_seconds: Length of all traced steps together.
    """
    first, steps = own[0], len(evidence.timelines)
    by_layer: Counter[str] = Counter()
    for launch in own:
        by_layer[launch.owner.layer] += round(launch.seconds * 1e9)
    seconds = sum(launch.seconds for launch in own)
    follower = _follower(first, evidence)
    return KernelRow(
        name=first.name,
        layer=by_layer.most_common(1)[0][0],
        phase=first.owner.phase,
        count=len(own) / steps,
        total_seconds=seconds / steps,
        share=seconds / whole_seconds if whole_seconds else 0.0,
        median_seconds=_median(launch.seconds for launch in own),
        purpose=purpose_of(first.operation, first.name),
        next_kernel=follower,
        fusable=could_be_one(first.operation, follower),
    )


def _follower(launch: Launch, evidence: Evidence) -> str:
    """Name what reads a kernel's output at once in at least half of its launches."""
    mine = [
        (count, pair)
        for pair, count in evidence.pairs.items()
        if pair.phase == launch.owner.phase and pair.name == launch.operation
    ]
    count, pair = max(mine, default=(0, Pair("forward", "", "")))
    launches = sum(
        number
        for (phase, name), number in evidence.counts.items()
        if phase == launch.owner.phase and name == launch.operation
    )
    return pair.follower if count * 2 >= launches else ""
