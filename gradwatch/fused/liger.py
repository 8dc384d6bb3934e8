"""Liger-Kernel's functions as a provider, where it is installed (``pip install liger-kernel``).

They take part in a trial like any other: what does not agree with the stock layers, or writes into
what it was given, is rejected there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradwatch.fused.behaviour import NormForm, norm_form
from gradwatch.fused.operation import Function
from gradwatch.fused.providers import Offer, Site

__all__ = ["Liger"]

ON_CUDA = "Liger's kernels run on CUDA devices"


class Liger:
    """Norms and gates of Liger-Kernel."""

    name = "liger"

    def propose(self, site: Site) -> Offer:
        """Offer RMSNorm, LayerNorm, SwiGLU and GeGLU."""
        form = site.norm
        if form is None and type(site.module) in (nn.LayerNorm, nn.RMSNorm):
            form = norm_form(site.members[0], site.inputs[0])
        offer = _gates().get(site.activation) if site.pattern == "gate" else None
        if form is not None and site.module is not None and form.dim == -1 and form.weight:
            offer = _norm(form)
        if offer is None:
            return None
        return offer if site.inputs[0].is_cuda else ON_CUDA


def _gates() -> dict[str, Function]:
    from liger_kernel.ops.geglu import LigerGELUMulFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    def silu(gate: Tensor, up: Tensor) -> Any:  # noqa: ANN401 - a tensor
        return LigerSiLUMulFunction.apply(gate, up)

    def gelu_tanh(gate: Tensor, up: Tensor) -> Any:  # noqa: ANN401 - a tensor
        return LigerGELUMulFunction.apply(gate, up)

    return {"silu": silu, "gelu_tanh": gelu_tanh}


def _norm(form: NormForm) -> Function:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    mode = "gemma" if form.offset else "llama"

    def forward(self: nn.Module, x: Tensor) -> Any:  # noqa: ANN401 - a tensor
        weight = getattr(self, form.weight)
        if not form.centred:
            # Not in place: what comes in must be left as it is.
            return LigerRMSNormFunction.apply(x, weight, form.eps, form.offset, mode, False)
        bias = getattr(self, form.bias) if form.bias else torch.zeros_like(weight)
        return LigerLayerNormFunction.apply(x, weight, bias, form.eps)

    return forward
