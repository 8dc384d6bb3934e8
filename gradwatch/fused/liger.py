"""Liger-Kernel's functions as a provider, where it is installed (``pip install liger-kernel``).

They take part in a trial like any other. Two things are done for them, so that a swapped layer is
what the stock layer is at every call and not in the trial alone:

- Liger's gates write their gradients over the inputs they saved, its cross-entropy over the logits,
  unseen by autograd. Whoever reads these later (an accuracy taken of the logits, a hook, a second
  backward of a kept graph) would get gradients. They are handed copies; the trial's clock decides
  whether they pay nevertheless.
- Their gradients have none of their own, and Liger does not say so: ``create_graph=True`` raises
  here, where it would give wrong numbers.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gradwatch.fused._checks import autocast_dtype, refuse_call
from gradwatch.fused._gated import gated_eligible
from gradwatch.fused._group_norm import refuse as refuse_group_norm
from gradwatch.fused.behaviour import ACTIVATIONS, NormForm, norm_form
from gradwatch.fused.norms import stock_add_norm
from gradwatch.fused.operation import Function
from gradwatch.fused.providers import Offer
from gradwatch.fused.site import Site
from gradwatch.words import one_line

__all__ = ["Liger"]

# A program holds a row.
MAX_COLUMNS = 1 << 16
# Liger's name for: all in float32, rounded once at the end. Its other ways round more often.
CASTING = "gemma"
ROWS_AND_COLUMNS = 2


class Liger:
    """Norms, gates and the cross-entropy of Liger-Kernel."""

    name = "liger"

    def propose(self, site: Site) -> Offer:
        """Offer a function where Liger has one for the place and its live inputs."""
        found = _look_up(site)
        if found is None or isinstance(found, str):
            return found
        reason = found.refuse(*site.members, *site.inputs) or _refuse_import()
        return reason or found.function


class _Found(NamedTuple):
    """A function, and what says why it cannot take a call."""

    function: Function
    refuse: Callable[..., str | None]


def _look_up(site: Site) -> _Found | str | None:
    if site.pattern == "gate":
        return _gate(site.activation)
    if site.pattern == "add → norm":
        return None if site.norm is None else _add_norm(site.norm)
    if site.module is None:
        return None
    kind = type(site.module)
    if kind in (nn.LayerNorm, nn.RMSNorm):
        form = norm_form(site.module, site.inputs[0])
        return None if form is None else _norm(form)
    if site.norm is not None:
        return _norm(site.norm)
    return {nn.GroupNorm: _group_norm, nn.CrossEntropyLoss: _cross_entropy}.get(kind, _nothing)()


def _nothing() -> None:
    """Know nothing of a layer."""


@functools.cache
def _refuse_import() -> str | None:
    try:
        importlib.import_module("liger_kernel.ops")
    except Exception as error:  # noqa: BLE001 - whatever another package does when it is imported
        return f"liger_kernel is installed and cannot be imported: {one_line(error)}"
    return None


class _Copies:
    """An autograd context of which what was saved is read as copies."""

    def __init__(self, ctx: Any) -> None:  # noqa: ANN401 - torch's own
        self._ctx = ctx

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        return tuple(None if each is None else each.clone() for each in self._ctx.saved_tensors)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever Liger kept there
        return getattr(self._ctx, name)


@functools.cache
def _function(module: str, name: str, *, copies: bool) -> Any:  # noqa: ANN401 - untyped there
    """Give one of Liger's autograd functions, to be differentiated once."""
    stock: Any = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)

    class Once(stock):  # type: ignore[misc]
        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401 - torch's own
            return stock.backward(_Copies(ctx) if copies else ctx, *grads)

    return Once


def _run(module: str, name: str, x: Tensor, *others: Any, copies: bool = False) -> Any:  # noqa: ANN401
    # Triton launches on the current device, whichever the tensors are on.
    with torch.cuda.device_of(x):
        return _function(module, name, copies=copies).apply(x, *others)


def _gate(activation: str) -> _Found | str | None:
    named = {
        "silu": ("swiglu", "LigerSiLUMulFunction"),
        "gelu_tanh": ("geglu", "LigerGELUMulFunction"),
    }
    if activation == "gelu":
        return "Liger's GeGLU is that of the tanh approximation"
    if activation not in named:
        return None

    def gate(left: Tensor, right: Tensor) -> Any:  # noqa: ANN401 - a tensor
        if gated_eligible(left, right) is not None:
            return ACTIVATIONS[activation](left) * right
        return _run(*named[activation], left, right, copies=True)

    return _Found(gate, gated_eligible)


def _norm(form: NormForm) -> _Found | str:
    if form.dim != -1:
        return "Liger's norms are over the last dimension"
    if form.centred and not form.weight:
        return "Liger's LayerNorm has a weight"

    def refuse(module: nn.Module, *inputs: Any) -> str | None:
        return _refuse_norm(form, module, *inputs)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the stock one's
        if kwargs or refuse(self, *args) is not None:
            return type(self).forward(self, *args, **kwargs)
        x, weight = args[0].to(_dtype(form, self, args[0])), _parameter(self, form.weight)
        if not form.centred:
            # Not in place: the gradient that comes in must be left as it is.
            rest = (weight, form.eps, form.offset, CASTING, False)
            return _run("rms_norm", "LigerRMSNormFunction", x, *rest)
        bias = torch.zeros_like(weight) if not form.bias else _parameter(self, form.bias)
        return _run("layer_norm", "LigerLayerNormFunction", x, weight, bias, form.eps)

    return _Found(forward, refuse)


def _add_norm(form: NormForm) -> _Found | str:
    if form.centred or form.dim != -1:
        return "of additions, Liger fuses those before an RMSNorm over the last dimension"
    stock = stock_add_norm(form)

    def refuse(norm: nn.Module, x: Tensor, residual: Tensor) -> str | None:
        if (x.shape, x.dtype) != (residual.shape, residual.dtype):
            return "what is added is not like what it is added to"
        if _dtype(form, norm, x) != x.dtype:
            return f"it answers in {x.dtype} only, the type of what is added"
        return _refuse_norm(form, norm, x)

    def add_norm(norm: nn.Module, x: Tensor, residual: Tensor) -> Any:  # noqa: ANN401 - two tensors
        if refuse(norm, x, residual) is not None:
            return stock(norm, x, residual)
        rest = (residual, _parameter(norm, form.weight), form.eps, form.offset, CASTING, False)
        return _run("fused_add_rms_norm", "LigerFusedAddRMSNormFunction", x, *rest)

    return _Found(add_norm, refuse)


def _refuse_norm(form: NormForm, module: nn.Module, *inputs: Any) -> str | None:
    if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
        return "it is not called with one tensor"
    x, weight = inputs[0], _parameter(module, form.weight)
    wide = x.shape[-1] if x.dim() else 0
    if not x.numel() or wide > MAX_COLUMNS:
        return f"Liger's norms take rows of 1 to {MAX_COLUMNS} elements"
    if weight is not None and weight.shape != (wide,):
        return f"its input of shape {tuple(x.shape)} does not end in {tuple(weight.shape)}"
    return refuse_call(x, weight, _parameter(module, form.bias))


def _parameter(module: nn.Module, name: str) -> Any:  # noqa: ANN401 - a tensor or None
    return getattr(module, name) if name else None


def _dtype(form: NormForm, module: nn.Module, x: Tensor) -> torch.dtype:
    """Give the type the stock norm answers in."""
    if type(module) in (nn.LayerNorm, nn.RMSNorm):
        return autocast_dtype(x)
    weight = _parameter(module, form.weight)
    if weight is None or not form.promotes:
        return x.dtype
    return torch.promote_types(x.dtype, weight.dtype)


def _group_norm() -> _Found:
    def refuse(module: Any, *inputs: Any) -> str | None:  # noqa: ANN401 - a group norm
        if module.weight is None or module.bias is None:
            return "Liger's GroupNorm has weight and bias"
        return refuse_group_norm(module, *inputs)

    def forward(self: Any, input: Tensor) -> Any:  # noqa: A002, ANN401 - the stock name
        if refuse(self, input) is not None:
            return nn.GroupNorm.forward(self, input)
        x = input.to(autocast_dtype(input))
        rest = (self.weight, self.bias, self.num_channels, self.num_groups, self.eps)
        return _run("group_norm", "LigerGroupNormFunction", x, *rest)

    return _Found(forward, refuse)


def _cross_entropy() -> _Found:
    def forward(self: Any, input: Tensor, target: Tensor) -> Any:  # noqa: A002, ANN401 - the stock names
        if _refuse_loss(self, input, target) is not None:
            return nn.CrossEntropyLoss.forward(self, input, target)
        x = input.to(autocast_dtype(input))
        own = x.clone() if x is input and input.requires_grad else x
        rest = (self.weight, self.ignore_index, 0.0, self.label_smoothing, self.reduction)
        loss, *_ = _run(
            "cross_entropy", "LigerCrossEntropyFunction", own, target, *rest, copies=True
        )
        if self.reduction != "mean":
            return loss
        # The mean over no target at all, where Liger answers 0, which looks like a loss.
        return torch.where((target == self.ignore_index).all(), loss.new_full((), torch.nan), loss)

    return _Found(forward, _refuse_loss)


def _refuse_loss(module: Any, *inputs: Any) -> str | None:  # noqa: ANN401 - a loss
    if len(inputs) != ROWS_AND_COLUMNS or not all(isinstance(each, Tensor) for each in inputs):
        return "it is not called with logits and targets"
    x, target = inputs
    if x.dim() != ROWS_AND_COLUMNS or not x.numel() or target.shape != x.shape[:1]:
        return f"Liger's takes rows of logits and a target each, not {tuple(x.shape)}"
    if target.dtype != torch.int64 or target.device != x.device:
        return f"Liger's takes class indices in int64 on {x.device}, not {target.dtype}"
    return refuse_call(x, module.weight)
