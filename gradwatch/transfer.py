"""The one host transfer: the only place that waits for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from gradwatch.readings import FloatArray

WITHOUT_DOUBLE = frozenset({"mps"})


class Transfer:
    """Collect device values under names and bring them over in one wait.

    Values are joined into one flat tensor on the device (float64, exact for every
    smaller type; float32 where the device has no doubles) and read once.

    Examples:
        >>> transfer = Transfer()
        >>> transfer.add("loss", torch.tensor(2.0))
        >>> transfer.add("norms", torch.tensor([1.0, 3.0]))
        >>> {name: values.tolist() for name, values in transfer.fetch().items()}
        {'loss': [2.0], 'norms': [1.0, 3.0]}
    """

    def __init__(self) -> None:
        """Start empty."""
        self._parts: dict[str, Tensor] = {}

    def add(self, name: str, values: Tensor) -> None:
        """Put values on board; nothing is waited for.

        Args:
            name: Key they are handed back under.
            values: Real tensor of any shape on any device.
        """
        self._parts[name] = values.detach().reshape(-1)

    def any_non_finite(self) -> Tensor:
        """Tell on the device whether anything on board is NaN or inf: 1.0 or 0.0, 0-d."""
        flags = [(~part.isfinite()).any() for part in self._parts.values()]
        home = _home(flags) if flags else torch.device("cpu")
        moved = [flag.to(home, non_blocking=True).float() for flag in flags]
        return torch.stack(moved).max() if moved else torch.zeros(())

    def fetch(self) -> dict[str, FloatArray]:
        """Wait for the device once and hand back what was collected, as float64 arrays."""
        if not self._parts:
            return {}
        flat = np.asarray(_joined(list(self._parts.values())).tolist(), dtype=np.float64)
        ends = np.cumsum([part.numel() for part in self._parts.values()])
        pieces = np.split(flat, ends[:-1])
        names = list(self._parts)
        self._parts = {}
        return dict(zip(names, pieces, strict=True))


def _joined(parts: list[Tensor]) -> Tensor:
    home = _home(parts)
    wide = home.type not in WITHOUT_DOUBLE
    moved = [part if part.device == home else part.to(home, non_blocking=True) for part in parts]
    return torch.cat([part.double() if wide else part.float() for part in moved])


def _home(parts: list[Tensor]) -> torch.device:
    accelerated = [part.device for part in parts if part.device.type != "cpu"]
    return accelerated[0] if accelerated else parts[0].device
