"""Which stock layer has a fused one: a table, looked up by exact type."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import nn

from gradwatch.fused import (
    _batch_norm,
    _cross_entropy,
    _dropout,
    _group_norm,
    _layer_norm,
    _rms_norm,
    _sequential,
)
from gradwatch.fused._checks import refuse_module

__all__ = ["LAYERS", "FusedLayer"]


class FusedLayer(NamedTuple):
    """A fused layer that stands in for a stock one.

    Attributes:
        stock: The class it stands in for; a subclass is another layer.
        forward: Module-level function named ``forward``, to be bound on the instance.
        refuse: Takes a module of that class and its inputs; returns why the kernel cannot take
            them, or ``None``.
    """

    stock: type[nn.Module]
    forward: Callable[..., Any]
    refuse: Callable[..., str | None]

    def eligible(self, module: nn.Module, *inputs: object) -> str | None:
        """Say why the fused layer cannot stand in for a module.

        Args:
            module: The module.
            *inputs: What it is given.

        Returns:
            The reason, or ``None`` if it can.
        """
        return refuse_module(module, self.stock) or self.refuse(module, *inputs)


LAYERS: Mapping[type[nn.Module], FusedLayer] = MappingProxyType(
    {
        layer.stock: layer
        for layer in (
            FusedLayer(nn.LayerNorm, _layer_norm.forward, _layer_norm.refuse),
            FusedLayer(nn.RMSNorm, _rms_norm.forward, _rms_norm.refuse),
            FusedLayer(nn.CrossEntropyLoss, _cross_entropy.forward, _cross_entropy.refuse),
            FusedLayer(nn.BatchNorm2d, _batch_norm.forward, _batch_norm.refuse),
            FusedLayer(nn.GroupNorm, _group_norm.forward, _group_norm.refuse),
            FusedLayer(nn.Dropout, _dropout.forward, _dropout.refuse),
            FusedLayer(nn.Sequential, _sequential.forward, _sequential.refuse),
        )
    }
)
"""The fused layers, by the stock class each stands in for."""
