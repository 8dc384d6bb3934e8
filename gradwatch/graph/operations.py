"""Names of graph nodes, and which of them saturate or normalise."""

from __future__ import annotations

import re
from functools import lru_cache

PARAMETER = "parameter"
# Largest derivative of each: what a gradient is multiplied with at best.
SATURATING = {
    "sigmoid": 0.25,
    "hardsigmoid": 1 / 6,
    "softmax": 0.5,
    "tanh": 1.0,
    "hardtanh": 1.0,
}
NORMALISING = frozenset(
    {
        "native_layer_norm",
        "native_group_norm",
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "fused_rms_norm",
    }
)

_BACKWARD = re.compile(r"Backward\d*[A-Za-z]*$")
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=4096)
def operation_of(node: str) -> str:
    """Give the operation a node is the backward of, as PyTorch spells it in Python.

    Args:
        node: The node's name.

    Examples:
        >>> operation_of("NativeLayerNormBackward0"), operation_of("AddmmBackward0")
        ('native_layer_norm', 'addmm')
        >>> operation_of("torch::autograd::AccumulateGrad")
        'parameter'
    """
    bare = _BACKWARD.sub("", node.rpartition("::")[2])
    return PARAMETER if bare == "AccumulateGrad" else _WORD.sub("_", bare).lower()
