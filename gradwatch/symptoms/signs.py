"""Everything the table of symptoms looks at, as plain values; what is unknown is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    # A profile may ask the table itself: the two packages must not wait for each other.
    from gradwatch.roofline.profile import Profile


class Loading(NamedTuple):
    """How batches are loaded.

    Attributes:
        workers: Processes that load.
        pinned: Whether batches lie in memory that copies to a device need not wait for.
        persistent: Whether the processes outlive an epoch.
        accelerated: Whether the model runs on an accelerator.
    """

    workers: int = 0
    pinned: bool = False
    persistent: bool = False
    accelerated: bool = False


class Budget(NamedTuple):
    """What memory should hold, beside what it held at most.

    Attributes:
        peak_bytes: Highest allocated.
        weights_bytes: Parameters, their gradients and the optimizer's state.
        saved_bytes: What the forward keeps for the backward.
    """

    peak_bytes: int
    weights_bytes: int
    saved_bytes: int


class Precision(NamedTuple):
    """How the weights of one layer are kept and moved.

    Attributes:
        dtype: Such as ``"bfloat16"``.
        resolution: Relative distance of two neighbouring numbers of that type.
        update_ratio: Median of ‖θ′−θ‖/‖θ‖ over the recorded steps.
    """

    dtype: str
    resolution: float
    update_ratio: float


class Fused(NamedTuple):
    """A layer's kernels and the whole step, before and after its kernels were fused.

    Attributes:
        layer: The layer.
        kernel_seconds: Time of its kernels before and after.
        step_seconds: Time of a step before and after.
    """

    layer: str
    kernel_seconds: tuple[float, float]
    step_seconds: tuple[float, float]


class Repeat(NamedTuple):
    """One step, run twice from the same state.

    Attributes:
        loss_differs: Whether the loss has other bits.
        parameters: Parameters whose gradient has other bits, with the largest difference over
            the gradient's largest number.
        edited: Tensors of the batch that the step itself wrote over.
        streams: Whether the model runs on an accelerator, where streams may race.
        deterministic: Whether ``torch.use_deterministic_algorithms`` is on.
    """

    loss_differs: bool
    parameters: Mapping[str, float]
    edited: tuple[str, ...] = ()
    streams: bool = False
    deterministic: bool = False


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What is known of a run.

    Attributes:
        profile: Where the time of a few steady steps went.
        loading: How batches are loaded.
        budget: What memory should hold and did.
        loss_scale: The gradient scaler's scale.
        precision: Layer → how its weights are kept and moved.
        half_copy_only: Type of weights of which neither the optimizer nor anyone else has a
            copy in float32; empty where they are float32 or there is one.
        fused: A layer before and after its kernels were fused.
        repeat: One step run twice.
        devices: Devices that this one process drives by ``DataParallel``.
    """

    profile: Profile | None = None
    loading: Loading | None = None
    budget: Budget | None = None
    loss_scale: float | None = None
    precision: Mapping[str, Precision] = field(default_factory=dict)
    half_copy_only: str = ""
    fused: Fused | None = None
    repeat: Repeat | None = None
    devices: int = 1
