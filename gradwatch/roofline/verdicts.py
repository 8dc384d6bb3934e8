"""What bounds a layer: memory bandwidth, arithmetic, launches, or waiting."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
