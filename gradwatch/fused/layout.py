"""channels_last: the same weights in another order in memory, on and off."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["ChannelsLast", "refuse_layout"]

CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
IN_BUCKETS = (
    "a process group sends gradients in buckets that were laid out before, and would read them in "
    "the wrong order; lay the model out before the fit: model.to(memory_format=torch.channels_last)"
)


def refuse_layout() -> str:
    """Say why weights must not be laid out anew in the midst of a training; empty if they may.

    ``DistributedDataParallel`` (PyTorch 2.13) writes gradients into its buckets in the layout that
    the weights had when it was made, and reads them back in the one they have now: the gradients
    that come out are scrambled, also with one process, and nothing is said. Nothing public makes
    it lay its buckets out anew.
    """
    return IN_BUCKETS if dist.is_available() and dist.is_initialized() else ""


class ChannelsLast:
    """Lay the weights of a model's convolutions out with channels last, and back.

    Parameters stay the same objects with the same values; what runs on them takes over their
    layout by itself. Going back gives each its old memory again.

    Args:
        model: The model.

    Attributes:
        on: Whether channels come last now.
        layers: Names of the convolutions concerned; none where the user laid them out so.
    """

    def __init__(self, model: nn.Module) -> None:
        """Find the convolutions; nothing is laid out anew yet."""
        self.on = False
        self._weights: list[nn.Parameter] = []
        self._before: list[Tensor] = []
        self.layers = tuple(self._find(model))

    def _find(self, model: nn.Module) -> Iterator[str]:
        for name, module in model.named_modules():
            weight = module._parameters.get("weight") if isinstance(module, CONVOLUTIONS) else None
            if weight is None or weight.is_contiguous(memory_format=torch.channels_last):
                continue
            if not any(weight is each for each in self._weights):
                self._weights.append(weight)
                yield name

    def turn(self, *, on: bool) -> None:
        """Lay the weights out; safe to call twice.

        Args:
            on: Channels last, or as they were.
        """
        if on == self.on:
            return
        self.on = on
        if on:
            self._before = [each.data for each in self._weights]
            for each in self._weights:
                each.data = each.data.contiguous(memory_format=torch.channels_last)
            return
        for each, before in zip(self._weights, self._before, strict=True):
            before.copy_(each.data)
            each.data = before
        self._before = []

    def follow(self, optimizer: Optimizer) -> None:
        """Lay gradients and an optimizer's state out like the weights.

        Mixed layouts take an optimizer's slow way, and a fused one reads them in the wrong order
        (``Adam(fused=True)`` on a CPU) or refuses them (on CUDA).

        Args:
            optimizer: The optimizer.
        """
        for weight in self._weights:
            own = optimizer.state.get(weight, {})
            for name, value in own.items():
                if isinstance(value, Tensor) and value.shape == weight.shape:
                    own[name] = _like(weight, value)
            if weight.grad is not None:
                weight.grad.data = _like(weight, weight.grad.data)


def _like(weight: Tensor, value: Tensor) -> Tensor:
    if value.stride() == weight.stride():
        return value
    return torch.empty_like(weight, dtype=value.dtype).copy_(value)
