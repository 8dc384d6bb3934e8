"""When a roofline profile is taken, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from gradwatch.errors import whole


@dataclass(frozen=True, kw_only=True)
class RooflineOptions:
    """Which steps are looked at; before and after them nothing is attached.

    Attributes:
        warmup_steps: Steps before the first that is looked at: caches fill, algorithms are
            chosen, clocks settle.
        timed_steps: Steps whose phases are timed, without the profiler.
        traced_steps: Steps run under torch's profiler.
        refresh_ceilings: Measure the machine again, whatever is remembered of it.
        nvtx: Put an NVTX range around each layer's forward in the traced steps.

    Raises:
        ConfigurationError: If a number of steps cannot be meant.
    """

    warmup_steps: int = 10
    timed_steps: int = 5
    traced_steps: int = 3
    refresh_ceilings: bool = False
    nvtx: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        whole("warmup_steps", self.warmup_steps, 0)
        whole("timed_steps", self.timed_steps, 1)
        whole("traced_steps", self.traced_steps, 1)
