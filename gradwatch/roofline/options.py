"""When a roofline profile is taken, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from gradwatch.errors import ConfigurationError


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
        for name, least in (("warmup_steps", 0), ("timed_steps", 1), ("traced_steps", 1)):
            steps = getattr(self, name)
            if not isinstance(steps, int) or steps < least:
                message = f"{name} must be a whole number of {least} or more; got {steps!r}"
                raise ConfigurationError(message)
