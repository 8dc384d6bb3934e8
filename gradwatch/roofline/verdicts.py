"""What bounds a layer: memory bandwidth, arithmetic, launches, or waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from gradwatch.roofline.ceilings import Ceilings
    from gradwatch.roofline.costs import LayerCost

VerdictKind = Literal["bandwidth-bound", "compute-bound", "launch-bound", "waiting"]


class LayerVerdict(NamedTuple):
    """What bounds one layer, with the figures behind it; all of one training step.

    A layer's own work only: what its children do stands in their rows.

    Attributes:
        layer: Name of the module as the user wrote it, or ``<root>``, ``<loss>``.
        kind: What bounds it.
        forward_seconds: Time of its forward.
        backward_seconds: Time of its backward.
        flops: Floating-point operations, forward and backward.
        moved_bytes: Bytes that must move, forward and backward: each tensor that enters or
            leaves the layer, once.
        saved_bytes: Bytes that it alone keeps from the forward for the backward.
        kernels: Kernels launched, forward and backward.
        achieved_bytes_per_second: ``moved_bytes`` over its time.
        intensity: ``flops`` over ``moved_bytes``.
        gain_seconds: Time of a step expected to be saved if the layer were fused.
        gain_share: The same as a share of the step.
        reason: One sentence with the figures.
    """

    layer: str
    kind: VerdictKind
    forward_seconds: float
    backward_seconds: float
    flops: float
    moved_bytes: float
    saved_bytes: float
    kernels: float
    achieved_bytes_per_second: float
    intensity: float
    gain_seconds: float
    gain_share: float
    reason: str


# A layer waits where most of its time nothing runs, and far longer than its launches explain.
IDLE_SHARE = 0.5
IDLE_LAUNCHES = 5.0
# Under the profiler, entering a module costs the host its hooks: many times a small launch.
IDLE_CALLS = 20.0
IDLE_OF_STEP = 0.01
# One kernel forward and one backward is the least a layer can be.
FEWEST_KERNELS = 2


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """What one step of a layer took; in seconds.

    Attributes:
        forward: Time of its forward: its kernels on an accelerator, the host's time on a CPU.
        backward: The same of its backward.
        idle: Time in which it held the step up while no kernel ran.
        held: All the time it held the step up.
        kernels: Kernels launched.
        calls: Times that it was entered, by its caller or back from one of its children.
        median_kernel: Median length of one of them.
    """

    forward: float = 0.0
    backward: float = 0.0
    idle: float = 0.0
    held: float = 0.0
    kernels: float = 0.0
    calls: float = 0.0
    median_kernel: float = 0.0

    @property
    def both(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a layer's work would take if only one thing bounded it; in seconds.

    Attributes:
        bandwidth: Its bytes at the measured bandwidth.
        arithmetic: Its matrix operations at the measured rates.
        launches: Its kernels at the measured floor.
    """

    bandwidth: float
    arithmetic: float
    launches: float


def need_of(cost: LayerCost, kernels: float, ceilings: Ceilings) -> Need:
    """Hold a layer's cost against the machine.

    Args:
        cost: What it does.
        kernels: Kernels it launches.
        ceilings: What the machine can do; a dtype that was not measured counts as float32.

    Returns:
        The three times.
    """
    rates = ceilings.matrix_flops_per_second
    usual = rates.get("float32") or max(rates.values())
    arithmetic = sum(
        flops / rates.get(dtype, usual)
        for phase in (cost.forward, cost.backward)
        for dtype, flops in phase.matrix_flops.items()
    )
    moved = cost.forward.moved_bytes + cost.backward.moved_bytes
    return Need(
        bandwidth=moved / ceilings.copy_bytes_per_second,
        arithmetic=arithmetic,
        launches=kernels * ceilings.launch_seconds,
    )


def judge_layer(
    layer: str, cost: LayerCost, time: LayerTime, ceilings: Ceilings, step_seconds: float
) -> LayerVerdict:
    """Say what bounds a layer.

    It is what its work would need most time for, if nothing else bounded it: its bytes, its
    arithmetic or its launches. Where it mostly stands still, it waits.

    Args:
        layer: Its name.
        cost: What it does.
        time: What it took.
        ceilings: What the machine can do.
        step_seconds: Length of a step.

    Returns:
        The verdict.
    """
    need = need_of(cost, time.kernels, ceilings)
    kind = _kind(need, time, ceilings.launch_seconds, step_seconds)
    flops = cost.forward.flops + cost.backward.flops
    moved = cost.forward.moved_bytes + cost.backward.moved_bytes
    gain = _gain(kind, need, time)
    verdict = LayerVerdict(
        layer=layer,
        kind=kind,
        forward_seconds=time.forward,
        backward_seconds=time.backward,
        flops=flops,
        moved_bytes=moved,
        saved_bytes=cost.saved_bytes,
        kernels=time.kernels,
        achieved_bytes_per_second=moved / time.both if time.both > 0 else 0.0,
        intensity=flops / moved if moved > 0 else 0.0,
        gain_seconds=gain,
        gain_share=gain / step_seconds if step_seconds > 0 else 0.0,
        reason="",
    )
    return verdict._replace(reason=_reason(verdict, need, time, ceilings))


def _kind(need: Need, time: LayerTime, launch_seconds: float, step_seconds: float) -> VerdictKind:
    explained = IDLE_LAUNCHES * need.launches + IDLE_CALLS * time.calls * launch_seconds
    least = max(IDLE_SHARE * time.held, IDLE_OF_STEP * step_seconds, explained)
    if time.idle > least:
        return "waiting"
    kinds: dict[VerdictKind, float] = {
        "bandwidth-bound": need.bandwidth,
        "compute-bound": need.arithmetic,
        "launch-bound": need.launches,
    }
    return max(kinds, key=lambda kind: kinds[kind])


def _gain(kind: VerdictKind, need: Need, time: LayerTime) -> float:
    """Give what fusing would save at most.

    A fused kernel moves what must move at the ceiling; a launch-bound layer becomes one kernel
    forward and one backward. Nothing else gets faster by fusing.
    """
    if kind == "bandwidth-bound":
        return max(time.both - need.bandwidth, 0.0)
    if kind == "launch-bound" and time.kernels > FEWEST_KERNELS:
        return time.both * (1 - FEWEST_KERNELS / time.kernels)
    return 0.0


def _reason(verdict: LayerVerdict, need: Need, time: LayerTime, ceilings: Ceilings) -> str:
    rate = verdict.achieved_bytes_per_second
    share = rate / ceilings.copy_bytes_per_second
    if verdict.kind == "bandwidth-bound":
        return (
            f"its {verdict.moved_bytes / 1e6:,.4g} MB alone need {_ms(need.bandwidth)} and its "
            f"arithmetic {_ms(need.arithmetic)}; it took {_ms(time.both)}, at "
            f"{rate / 1e9:,.3g} GB/s ({share:.0%} of the copy bandwidth), "
            f"{_against_ridge(verdict, ceilings)}"
        )
    if verdict.kind == "compute-bound":
        achieved = verdict.flops / time.both / 1e9 if time.both > 0 else 0.0
        return (
            f"its {verdict.flops / 1e9:,.3g} GFLOP alone need {_ms(need.arithmetic)} and its "
            f"bytes {_ms(need.bandwidth)}; it took {_ms(time.both)}, at {achieved:,.3g} GFLOP/s, "
            f"{_against_ridge(verdict, ceilings)}"
        )
    if verdict.kind == "launch-bound":
        return (
            f"its {time.kernels:.0f} kernels need {_ms(need.launches)} to be launched, its bytes "
            f"{_ms(need.bandwidth)} and its arithmetic {_ms(need.arithmetic)}; the median kernel "
            f"takes {time.median_kernel * 1e6:,.3g} µs"
        )
    return (
        f"nothing runs for {_ms(time.idle)} of the {_ms(time.held)} that it holds the step up; "
        f"the launches of its {time.kernels:.0f} kernels need {_ms(need.launches)}"
    )


def _against_ridge(verdict: LayerVerdict, ceilings: Ceilings) -> str:
    """Say on which side of the ridge a layer lies, by the rate of float32 where that is known."""
    rates = ceilings.matrix_flops_per_second
    dtype = "float32" if "float32" in rates else max(rates, key=lambda name: rates[name])
    return (
        f"{verdict.intensity:,.3g} FLOP/B, where the ridge of {dtype} lies at "
        f"{ceilings.ridge(dtype):,.3g}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms"
