"""Say where an operation stands: layer, call, between which inner modules, or the loss."""

from __future__ import annotations

from typing import NamedTuple

from torch.nn.modules.loss import _Loss

from gradwatch.findings import INPUT, LOSS, OPTIMIZER, ROOT
from gradwatch.non_finite.blame import Fault
from gradwatch.non_finite.calls import Call
from gradwatch.non_finite.trace import Operation, Trace

# A model that computes its own loss does so last, with one of these.
LOSSES = frozenset(
    f"aten::{name}"
    for name in (
        "nll_loss_forward", "nll_loss2d_forward", "nll_loss_nd", "mse_loss", "l1_loss",
        "binary_cross_entropy", "smooth_l1_loss", "huber_loss", "soft_margin_loss",
        "multi_margin_loss", "multilabel_margin_loss_forward", "_ctc_loss", "kl_div",
    )
)  # fmt: skip


class Place(NamedTuple):
    """Where a fault stands, in the user's words.

    Attributes:
        name: Layer, or ``<loss>``, ``<input>``, ``<optimizer>``, ``<root>``.
        call: Which call of the layer, counted from 0.
        calls: How often the layer is called.
        after: Inner module it stands after, empty for none.
        before: Inner module it stands before, empty for none.
    """

    name: str
    call: int = 0
    calls: int = 1
    after: str = ""
    before: str = ""


def place_of(fault: Fault, trace: Trace) -> Place:
    """Name the place of a fault.

    Args:
        fault: What is to blame.
        trace: The record it was found in.

    Returns:
        The place.
    """
    if fault.leaf is not None:
        name, _, last = fault.leaf.name.rpartition(".")
        owners = {"batch": INPUT, "parameter": OPTIMIZER, "gradient": LOSS}
        return Place(owners.get(fault.leaf.kind, name if last else ROOT) or ROOT)
    return _place(fault.operation, trace)


def operation_of(fault: Fault) -> str:
    """Name the operation of a fault; the backward of one is called after its forward."""
    operation = fault.operation
    if not operation.node:
        return operation.name
    if operation.node.endswith("Backward"):
        # A function of the user's own: torch numbers its own nodes.
        return f"backward of {operation.node.removesuffix('Backward')}"
    if "jit::" in operation.node:
        return "backward of scripted code"
    return f"backward of {fault.forward}" if fault.forward else f"backward node {operation.node}"


def _place(operation: Operation, trace: Trace) -> Place:
    if operation.node and operation.origin < 0:
        return Place(ROOT)
    call = operation.call
    # In a backward, the neighbours are those of the forward operation.
    index = operation.origin if operation.origin >= 0 else operation.index
    after, before = call.neighbours(index)
    between = (_name(after), _name(before))
    if call.module is None:
        return Place(LOSS if _is_after_outputs(call, index) else ROOT, 0, 1, *between)
    if isinstance(call.module, _Loss) or _is_own_loss(operation, trace, after, before):
        return Place(LOSS)
    return Place(call.name, call.number, trace.stack.count(call), *between)


def _is_after_outputs(call: Call, index: int) -> bool:
    """True after the last inner module that has weights; a metric or loss module has none."""
    after, _ = call.neighbours(index)
    later = (child for child in call.children if child.start > index and not child.graph >= 0)
    weighs = (next(child.module.parameters(), None) for child in later if child.module)
    return after is not None and all(weight is None for weight in weighs)


def _is_own_loss(
    operation: Operation, trace: Trace, after: Call | None, before: Call | None
) -> bool:
    index = operation.origin if operation.origin >= 0 else operation.index
    last = after is not None and before is None
    return last and trace.names[index] in LOSSES


def _name(call: Call | None) -> str:
    return "" if call is None or call.name == ROOT else call.name
