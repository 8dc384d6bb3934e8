"""What the machine can do: bandwidth, arithmetic, launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """What a device can do, measured.

    Attributes:
        device: Name of the device.
        copy_bytes_per_second: Bytes read plus bytes written by a copy beyond the caches.
        matrix_flops_per_second: dtype (``"float32"``) → rate of a large matrix product.
        launch_seconds: Time of the smallest operation there is: the floor under each kernel.
    """

    device: str
    copy_bytes_per_second: float
    matrix_flops_per_second: Mapping[str, float]
    launch_seconds: float

    def ridge(self, dtype: str) -> float:
        """Give the intensity (FLOP per byte) at which arithmetic begins to bound.

        Args:
            dtype: Such as ``"float32"``.
        """
        return self.matrix_flops_per_second[dtype] / self.copy_bytes_per_second
