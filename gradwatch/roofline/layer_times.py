"""From timelines to the time of each layer, and its verdict."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

from gradwatch.roofline import phases
from gradwatch.roofline.costs import LayerCost
from gradwatch.roofline.timeline import Owner
from gradwatch.roofline.verdicts import LayerTime, LayerVerdict, judge_layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gradwatch.roofline.ceilings import Ceilings
    from gradwatch.roofline.evidence import Evidence
    from gradwatch.roofline.timeline import Launch, Timeline

_OF_LAYERS = (phases.FORWARD, phases.BACKWARD)


def judge_layers(
    evidence: Evidence, ceilings: Ceilings, step_seconds: float
) -> tuple[LayerVerdict, ...]:
    """Judge every layer that launched something or waited.

    Args:
        evidence: What a study saw.
        ceilings: What the machine can do.
        step_seconds: Length of a step.

    Returns:
        The verdicts in the order of first use; none where nothing was counted or traced.
    """
    if not evidence.timelines or not evidence.costs:
        return ()
    device = evidence.device.type != "cpu"
    steps = [read_layer_times(line, device=device) for line in evidence.timelines]
    names = dict.fromkeys([*evidence.costs, *(name for step in steps for name in step)])
    verdicts = (
        judge_layer(
            name,
            evidence.costs.get(name, LayerCost()),
            _middle([step.get(name, LayerTime()) for step in steps]),
            ceilings,
            step_seconds,
        )
        for name in names
    )
    return tuple(own for own in verdicts if own.kernels or own.kind == "waiting")


def read_layer_times(line: Timeline, *, device: bool) -> dict[str, LayerTime]:
    """Give what each layer took in one step.

    Args:
        line: The step.
        device: Whether kernels ran on an accelerator: then their time counts, not the host's.
    """
    launches: dict[str, list[Launch]] = defaultdict(list)
    for launch in line.launches:
        if launch.owner.phase in _OF_LAYERS:
            launches[launch.owner.layer].append(launch)
    names = dict.fromkeys(owner.layer for owner in line.span_seconds if owner.phase in _OF_LAYERS)
    read = _device_time if device and any(launches.values()) else _host_time
    return {name: read(name, line, launches[name]) for name in [*names]}


def _device_time(layer: str, line: Timeline, own: Sequence[Launch]) -> LayerTime:
    gaps = sum(launch.gap for launch in own)
    busy = _busy(own)
    return LayerTime(
        forward=busy[phases.FORWARD],
        backward=busy[phases.BACKWARD],
        idle=gaps,
        held=gaps + sum(busy.values()),
        kernels=float(len(own)),
        calls=_calls(layer, line),
        median_kernel=_median(launch.seconds for launch in own),
    )


def _host_time(layer: str, line: Timeline, own: Sequence[Launch]) -> LayerTime:
    span = {
        phase: max(line.span_seconds.get(Owner(layer, phase), 0.0), 0.0) for phase in _OF_LAYERS
    }
    held = sum(span.values())
    return LayerTime(
        forward=span[phases.FORWARD],
        backward=span[phases.BACKWARD],
        idle=max(held - sum(_busy(own).values()), 0.0),
        held=held,
        kernels=float(len(own)),
        calls=_calls(layer, line),
        median_kernel=_median(launch.seconds for launch in own),
    )


def _busy(own: Sequence[Launch]) -> dict[str, float]:
    return {
        phase: sum(launch.seconds for launch in own if launch.owner.phase == phase)
        for phase in _OF_LAYERS
    }


def _calls(layer: str, line: Timeline) -> float:
    return float(sum(line.calls.get(Owner(layer, phase), 0) for phase in _OF_LAYERS))


def _middle(steps: Sequence[LayerTime]) -> LayerTime:
    """Take the median of each figure over the steps."""
    return LayerTime(
        forward=_median(step.forward for step in steps),
        backward=_median(step.backward for step in steps),
        idle=_median(step.idle for step in steps),
        held=_median(step.held for step in steps),
        kernels=_median(step.kernels for step in steps),
        calls=_median(step.calls for step in steps),
        median_kernel=_median(step.median_kernel for step in steps),
    )


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return median(known) if known else 0.0
