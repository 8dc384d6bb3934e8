"""What a few steady steps came to: phases, layers, kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradwatch.roofline.ceilings import Ceilings
from gradwatch.roofline.verdicts import LayerVerdict


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One of the kernels that took most of the step; all of one training step.

    Attributes:
        name: Name of the kernel (of the operation, on a CPU).
        layer: Layer it took most time in.
        phase: ``"forward"``, ``"backward"``, ``"optimizer"`` or ``"other"``.
        count: Launches a step.
        total_seconds: Time a step.
        share: The same as a share of the step.
        median_seconds: Median length of one launch.
        purpose: What it is for.
        next_kernel: The kernel that most often follows it and reads its output at once; empty
            where none does.
        fusable: Whether the two could be one.
    """

    name: str
    layer: str
    phase: str
    count: float
    total_seconds: float
    share: float
    median_seconds: float
    purpose: str
    next_kernel: str
    fusable: bool


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile of a few steady steps; times are medians over them, in seconds a step.

    Attributes:
        device: ``"cpu"`` or the name of the accelerator.
        steps: Steps that were profiled.
        step_seconds: Length of a step, without the profiler.
        phases: Phase → seconds: ``"data_wait"``, ``"host_to_device"``, ``"forward"``,
            ``"backward"``, ``"communication"`` (gradients between processes),
            ``"communication_hidden"`` (how much of it ran beside the backward),
            ``"optimizer"``, ``"other"``. What was not looked at is left out.
        layers: Verdict of each layer, in execution order.
        kernels: The twenty kernels with the largest share, largest first.
        ceilings: What the machine can do.
        kernel_seconds: Length of each kernel launched in one step, in order; all of them.
        traced_phases: The same phases in the steps that ran under the profiler: what the
            times of layers and kernels are parts of.
        overhead_seconds: Extra time the whole profile took.
        notes: What was not seen, and why.
    """

    device: str
    steps: int
    step_seconds: float
    phases: Mapping[str, float]
    layers: tuple[LayerVerdict, ...]
    kernels: tuple[KernelRow, ...]
    ceilings: Ceilings
    kernel_seconds: tuple[float, ...] = ()
    traced_phases: Mapping[str, float] = field(default_factory=dict)
    overhead_seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())
