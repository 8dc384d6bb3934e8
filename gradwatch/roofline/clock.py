"""When a border was crossed: on the host, or in the queue of a device without waiting for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import torch

from gradwatch.roofline.phases import Crossing

if TYPE_CHECKING:
    from gradwatch.parts import Border


class Clock(Protocol):
    """Stamps borders as they are crossed and gives the times afterwards."""

    def stamp(self, border: Border) -> None:
        """Note that a border is crossed now."""

    def crossings(self) -> list[Crossing]:
        """Give what was stamped, in seconds from the first."""


class HostClock:
    """Stamp with the host's clock."""

    def __init__(self) -> None:
        """Start with nothing stamped."""
        self._stamps: list[Crossing] = []

    def stamp(self, border: Border) -> None:
        """Note the time."""
        self._stamps.append(Crossing(time.perf_counter(), border))

    def crossings(self) -> list[Crossing]:
        """Give the times."""
        return list(self._stamps)


class DeviceClock:
    """Stamp with events in the device's queue: what runs ahead on the host costs nothing.

    Args:
        device: An accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        """Start with nothing stamped."""
        self._device = device
        self._stamps: list[tuple[torch.Event, Border]] = []

    def stamp(self, border: Border) -> None:
        """Put an event into the queue."""
        event = torch.Event(device=self._device, enable_timing=True)
        event.record()
        self._stamps.append((event, border))

    def crossings(self) -> list[Crossing]:
        """Wait for the last event and give the times."""
        if not self._stamps:
            return []
        first, last = self._stamps[0][0], self._stamps[-1][0]
        last.synchronize()
        return [Crossing(first.elapsed_time(event) / 1e3, border) for event, border in self._stamps]


def clock_of(device: torch.device) -> Clock:
    """Give the clock that tells a device's time.

    Args:
        device: Where the model lies.
    """
    return DeviceClock(device) if device.type == "cuda" else HostClock()
