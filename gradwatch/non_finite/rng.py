"""The state of every random number generator a training step may draw from."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

ACCELERATORS = ("cuda", "xpu")


@dataclass(frozen=True, kw_only=True)
class RandomState:
    """Generators of torch, of every device in use, of Python and of NumPy.

    Attributes:
        torch: State of the CPU generator.
        devices: State of each device's generator, keyed by device such as ``"cuda:0"``.
        python: State of the module ``random``.
        numpy: State of NumPy's global generator.
    """

    torch: Tensor
    devices: dict[str, Tensor]
    python: tuple[Any, ...]
    numpy: dict[str, Any]

    @classmethod
    def take(cls) -> RandomState:
        """Read every generator; none is advanced and no device is waited for."""
        return cls(
            torch=torch.get_rng_state(),
            devices=_device_states(),
            python=random.getstate(),
            numpy=np.random.get_state(legacy=False),  # noqa: NPY002 - the global one is what users draw from
        )

    @property
    def bytes(self) -> int:
        """Bytes of the states that are tensors."""
        return self.torch.nbytes + sum(state.nbytes for state in self.devices.values())

    def restore(self) -> None:
        """Set every generator back."""
        torch.set_rng_state(self.torch)
        for device, state in self.devices.items():
            # Apple's module knows one device and takes no name for it.
            which = () if device == "mps" else (device,)
            torch.get_device_module(device).set_rng_state(state, *which)
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002 - as above


def _device_states() -> dict[str, Tensor]:
    states: dict[str, Tensor] = {}
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    for kind in ACCELERATORS:
        module = torch.get_device_module(kind)
        # Reading the generator of a device nobody uses would start its driver.
        if module.is_initialized():
            for place in range(module.device_count()):
                states[f"{kind}:{place}"] = module.get_rng_state(f"{kind}:{place}")
    return states
