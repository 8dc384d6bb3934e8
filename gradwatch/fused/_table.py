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

__all__ = ["LAYERS", "FusedLayer"]


class FusedLayer(NamedTuple):
    """A fused layer that stands in for a stock one.

    Attributes:
        stock: The class it stands in for; a subclass is another layer.
        forward: Module-level function named ``forward``, to be bound on the instance.
        eligible: Takes a module and its inputs; returns why it cannot be replaced, or ``None``.
    """

    stock: type[nn.Module]
    forward: Callable[..., Any]
    eligible: Callable[..., str | None]


LAYERS: Mapping[type[nn.Module], FusedLayer] = MappingProxyType(
    {
        layer.stock: layer
        for layer in (
            FusedLayer(nn.LayerNorm, _layer_norm.forward, _layer_norm.eligible),
            FusedLayer(nn.RMSNorm, _rms_norm.forward, _rms_norm.eligible),
            FusedLayer(nn.CrossEntropyLoss, _cross_entropy.forward, _cross_entropy.eligible),
            FusedLayer(nn.BatchNorm2d, _batch_norm.forward, _batch_norm.eligible),
            FusedLayer(nn.GroupNorm, _group_norm.forward, _group_norm.eligible),
            FusedLayer(nn.Dropout, _dropout.forward, _dropout.eligible),
            FusedLayer(nn.Sequential, _sequential.forward, _sequential.eligible),
        )
    }
)
"""The fused layers, by the stock class each stands in for."""
