"""Norms of any recognised form through fused functions: forwards that copy and pickle.

Each is made for a form and takes its weights from the module it is bound to: nothing but numbers
and names is closed over, so that a deep copy computes with its own weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused._checks import refuse_call, under_autocast
from gradwatch.fused._layer_norm import add_layer_norm, layer_norm
from gradwatch.fused._norms import refuse_norm
from gradwatch.fused._rms_norm import add_rms_norm, rms_norm
from gradwatch.fused.behaviour import NormForm
from gradwatch.fused.operation import Function

__all__ = ["fused_add_norm", "fused_norm", "refuse_add_norm", "stock_add_norm", "torch_norm"]


def fused_norm(form: NormForm) -> Function:
    """Make a forward that runs the bundled kernel.

    Args:
        form: What the norm computes.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the stock one's
        x = args[0] if len(args) == 1 and not kwargs else None
        if not isinstance(x, Tensor) or _refuse(form, self, x) is not None:
            return type(self).forward(self, *args, **kwargs)
        weight, bias = _scaled(form, self)
        rows, dtype = x.movedim(form.dim, -1), _dtype(form, x, self)
        if form.centred:
            y = layer_norm(rows, rows.shape[-1:], weight, bias, form.eps, dtype=dtype)
        else:
            y = rms_norm(rows, rows.shape[-1:], weight, form.eps, dtype=dtype)
        return y.movedim(-1, form.dim)

    return forward


def torch_norm(form: NormForm) -> Function:
    """Make a forward that runs ``torch.nn.functional.layer_norm`` or ``rms_norm``.

    Args:
        form: What the norm computes.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the stock one's
        x = args[0] if len(args) == 1 and not kwargs else None
        if not isinstance(x, Tensor):
            return type(self).forward(self, *args, **kwargs)
        weight, bias = _scaled(form, self)
        dtype = _dtype(form, x, self)
        rows = x.movedim(form.dim, -1)
        if weight is not None and weight.dtype != x.dtype:
            rows = rows.to(weight.dtype)
        shape = list(rows.shape[-1:])
        with torch.autocast(x.device.type, enabled=False):
            if form.centred:
                y = F.layer_norm(rows, shape, weight, bias, form.eps)
            else:
                y = F.rms_norm(rows, shape, weight, form.eps)
        return y.movedim(-1, form.dim).to(dtype)

    return forward


def fused_add_norm(form: NormForm) -> Function:
    """Make a function that adds a residual and normalises: ``(norm, x, residual) → (y, sum)``.

    Args:
        form: What the norm computes.
    """
    stock = stock_add_norm(form)

    def add_norm(norm: nn.Module, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        if refuse_add_norm(form, norm, x, residual) is not None:
            return stock(norm, x, residual)
        weight, bias = _scaled(form, norm)
        total = torch.promote_types(x.dtype, residual.dtype)
        shape, dtype = x.shape[-1:], _dtype(form, x, norm, total)
        if form.centred:
            return add_layer_norm(x, residual, shape, weight, bias, form.eps, dtype=dtype)
        return add_rms_norm(x, residual, shape, weight, form.eps, dtype=dtype)

    return add_norm


def refuse_add_norm(form: NormForm, module: nn.Module, x: Tensor, residual: Tensor) -> str | None:
    """Say why the bundled kernel cannot add a residual and normalise.

    Args:
        form: What the norm computes.
        module: The norm.
        x: Its branch.
        residual: What is added.

    Returns:
        The reason, or ``None``.
    """
    if form.dim != -1:
        return "it normalises over channels that do not come last"
    if x.shape != residual.shape:
        return f"a {tuple(residual.shape)} is added to a {tuple(x.shape)}"
    # What the norm is given is the sum, in the type torch promotes the two to: under autocast a
    # bfloat16 branch and a float32 residual give float32.
    total = torch.promote_types(x.dtype, residual.dtype)
    like_it = x if x.dtype == total else residual
    return refuse_call(x, residual) or _refuse(form, module, like_it)


def stock_add_norm(_form: NormForm) -> Callable[..., tuple[Tensor, Tensor]]:
    """Make the same out of an addition and the module's own forward."""

    def add_norm(norm: nn.Module, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return type(norm).forward(norm, total), total

    return add_norm


def _scaled(form: NormForm, module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    weight = getattr(module, form.weight) if form.weight else None
    bias = getattr(module, form.bias) if form.bias else None
    if weight is not None and form.offset:
        # In float32: one plus a small bfloat16 number is one.
        weight = weight.float() + form.offset
    return weight, bias


def _dtype(
    form: NormForm, x: Tensor, module: nn.Module, given: torch.dtype | None = None
) -> torch.dtype:
    """Say what comes out where the norm is given ``given``, by default what x is."""
    given = given or x.dtype
    if type(module) in (nn.LayerNorm, nn.RMSNorm):
        return torch.float32 if under_autocast(x) else given
    if not form.weight or not form.promotes:
        return given
    weight: Tensor = getattr(module, form.weight)
    return torch.promote_types(given, weight.dtype)


def _refuse(form: NormForm, module: nn.Module, x: Tensor) -> str | None:
    rows = x.movedim(form.dim, -1)
    weight = getattr(module, form.weight) if form.weight else None
    bias = getattr(module, form.bias) if form.bias else None
    mixed = weight is not None and weight.dtype != x.dtype
    if mixed and not under_autocast(x):
        # The kernel reads each tensor in its own type; the gate below is about stock layers.
        return refuse_norm(rows, rows.shape[-1:], None, None)
    return refuse_norm(rows, rows.shape[-1:], weight, bias)
