"""When memory is worth a word."""

from __future__ import annotations

from dataclasses import dataclass

from gradwatch.errors import ConfigurationError, positive, whole

SHARES = ("growth_share", "fragmentation", "temporaries", "activations", "full", "held")


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """When memory is worth a word.

    Args:
        window_steps: Steps a growth or a fragmentation must last.
        growth_MiB: Least growth over the window that is told.
        growth_share: Share of the window's steps that must have grown.
        fragmentation: Share of the reserved memory, split off and unused, that is told.
        fragmented_MiB: Least split-off memory that is told.
        temporaries: Share of the peak that is short-lived, to be told.
        temporaries_MiB: Least short-lived memory that is told.
        activations: Share of the peak that the forward keeps for the backward, to be told.
        full: Share of the device's memory that the peak must have come to before anything is
            said that is only a matter of making room.
        held: Share of the peak that gradients take while the next forward runs, to be told.
        live_objects: Look before the first step, after ``window_steps`` and as many again at all
            that Python holds for tensors that keep a graph alive; and where memory grows.
        cooldown_steps: Steps before the same rule speaks again.

    Raises:
        ConfigurationError: If an option cannot be meant.
    """

    window_steps: int = 32
    growth_MiB: float = 16.0  # noqa: N815 - the unit belongs to the name
    growth_share: float = 0.75
    fragmentation: float = 0.3
    fragmented_MiB: float = 256.0  # noqa: N815 - as above
    temporaries: float = 0.3
    temporaries_MiB: float = 256.0  # noqa: N815 - as above
    activations: float = 0.4
    full: float = 0.7
    held: float = 0.1
    live_objects: bool = True
    cooldown_steps: int = 1000

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, with the option's name."""
        for name in vars(self):
            if name != "live_objects":
                positive(name, getattr(self, name))
        for name in SHARES:
            if getattr(self, name) > 1:
                message = f"{name} is a share in (0, 1]; got {getattr(self, name)!r}"
                raise ConfigurationError(message)
        # One step has no growth.
        whole("window_steps", self.window_steps, 2)
        whole("cooldown_steps", self.cooldown_steps, 1)
