"""Find the cross-entropy in what a forward does: as one function, or as log-softmax and loss."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from gradwatch.fused.loss_forms import LossForm
from gradwatch.fused.operation import Function

__all__ = ["LossCall", "find_loss", "function_form"]

LOG_SOFTMAX = {F.log_softmax, torch.log_softmax, "log_softmax"}


class LossCall(NamedTuple):
    """A cross-entropy of logits and class indices that a forward computes by calling functions.

    Attributes:
        form: What it computes.
        stock: The calls as one function of logits and targets.
        inputs: Nodes of both.
    """

    form: LossForm
    stock: Function
    inputs: tuple[fx.Node, ...]


def find_loss(node: fx.Node) -> LossCall | None:
    """Find the cross-entropy that ends in a node.

    Args:
        node: A node of a traced forward; its ``meta["value"]`` is a live value.
    """
    if node.op != "call_function" or node.target not in (F.cross_entropy, F.nll_loss):
        return None
    given = _bound(node)
    source, target = given["input"], given["target"]
    if not isinstance(source, fx.Node) or not isinstance(target, fx.Node):
        return None
    if node.target is F.cross_entropy:
        return _call(node, given, (source, target), None)
    if len(source.users) != 1 or source.target not in LOG_SOFTMAX:
        return None
    logits, *rest = source.args
    if not isinstance(logits, fx.Node) or len(rest) > 1:
        return None
    given_by_name = {
        name: source.kwargs[name] for name in ("dim", "dtype") if name in source.kwargs
    }
    softmax = dict(zip(("dim",), rest, strict=False)) | given_by_name
    return _call(node, given, (logits, target), softmax)


def function_form(x: Tensor, target: Tensor, options: dict[str, Any]) -> LossForm | None:
    """Say what a call of ``cross_entropy`` or ``nll_loss`` computes, if a form says it.

    Args:
        x: Logits.
        target: Targets.
        options: The call's other arguments.
    """
    weighted = any(options.get(name) is not None for name in ("weight", "size_average", "reduce"))
    plain = not any(isinstance(each, fx.Node) for each in options.values())
    indices = target.dtype == torch.int64 and x.is_floating_point()
    if weighted or not plain or not indices or target.dim() != x.dim() - 1:
        return None
    return LossForm(
        options.get("ignore_index", -100),
        options.get("reduction", "mean"),
        options.get("label_smoothing", 0.0),
        1 if x.dim() > 2 else -1,  # noqa: PLR2004 - of two dimensions the second is the last
        x.dim(),
    )


def _bound(node: fx.Node) -> dict[str, Any]:
    call: Any = node.target
    bound = inspect.signature(call).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _call(
    node: fx.Node,
    given: dict[str, Any],
    inputs: tuple[fx.Node, fx.Node],
    softmax: dict[str, Any] | None,
) -> LossCall | None:
    x, y, loss = (each.meta.get("value") for each in (*inputs, node))
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not isinstance(loss, Tensor):
        return None
    options = {name: own for name, own in given.items() if name not in ("input", "target")}
    form = function_form(x, y, options)
    if form is None or (softmax is not None and softmax.get("dim") not in _class_dims(x)):
        return None
    form = form._replace(promotes=loss.dtype == torch.float32 and x.dtype != torch.float32)
    call: Any = node.target

    def stock(x: Tensor, target: Tensor) -> Any:  # noqa: ANN401 - a tensor
        source = x if softmax is None else F.log_softmax(x, **softmax)
        return call(source, target, **options)

    return LossCall(form, stock, inputs)


def _class_dims(x: Tensor) -> tuple[int, int]:
    dim = 1 if x.dim() > 1 else 0
    return dim, dim - x.dim()
