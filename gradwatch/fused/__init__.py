"""Layers with a fused backward: functional forms, and drop-in forwards for stock modules."""

from gradwatch.fused._batch_norm import batch_norm, batch_norm_add_relu, batch_norm_relu
from gradwatch.fused._cross_entropy import cross_entropy
from gradwatch.fused._dropout import dropout
from gradwatch.fused._gated import (
    gated_eligible,
    geglu,
    geglu_packed,
    swiglu,
    swiglu_packed,
)
from gradwatch.fused._group_norm import group_norm, group_norm_silu
from gradwatch.fused._layer_norm import add_layer_norm, layer_norm
from gradwatch.fused._linear import linear_gelu, linear_relu
from gradwatch.fused._rms_norm import add_rms_norm, rms_norm
from gradwatch.fused._swap import swap
from gradwatch.fused._table import LAYERS, FusedLayer

__all__ = [
    "LAYERS",
    "FusedLayer",
    "add_layer_norm",
    "add_rms_norm",
    "batch_norm",
    "batch_norm_add_relu",
    "batch_norm_relu",
    "cross_entropy",
    "dropout",
    "gated_eligible",
    "geglu",
    "geglu_packed",
    "group_norm",
    "group_norm_silu",
    "layer_norm",
    "linear_gelu",
    "linear_relu",
    "rms_norm",
    "swap",
    "swiglu",
    "swiglu_packed",
]
