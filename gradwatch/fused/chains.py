"""Rewrite a block's forward: the chains of operations in it that one kernel can do.

A pair or triple is fused only where its first result is read by the next operation and by nothing
else. Module hooks cannot prove that, and an addition stands in the block's code: so the forward of
the smallest module around the chain is run once on live values while torch.fx writes down what it
does. The graph is the proof; what was specialised (types, flags, absent inputs) is checked at each
call, and a call that does not fit goes the stock way.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from gradwatch.fused.behaviour import ACTIVATIONS, norm_form, recognise_activation
from gradwatch.fused.loss_chains import find_loss
from gradwatch.fused.norms import stock_add_norm
from gradwatch.fused.operation import Function
from gradwatch.fused.providers import Pattern, Site

__all__ = ["Chain", "find_chains"]

ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
PURE_ADDITIONS = {operator.add, torch.add, "add"}
PRODUCTS = {operator.mul, torch.mul, "mul"}
FUNCTIONS = {
    F.relu: "relu", torch.relu: "relu", torch.relu_: "relu", "relu": "relu", "relu_": "relu",
    F.silu: "silu",
}  # fmt: skip
GATES = ("silu", "gelu", "gelu_tanh")
HEADS: dict[type[nn.Module], tuple[str, tuple[str, ...]]] = {
    nn.Linear: ("Linear", ("relu", "gelu", "gelu_tanh")),
    nn.BatchNorm2d: ("BatchNorm2d", ("relu",)),
    nn.GroupNorm: ("GroupNorm", ("silu",)),
}


class _Act(NamedTuple):
    node: fx.Node
    name: str
    skipped: tuple[str, ...]


class Chain(NamedTuple):
    """A chain found in a block.

    Attributes:
        site: The place, with live inputs.
        members: Paths of its modules below the block.
        stock: The chain as one function of members and inputs.
        last: Node whose value the fused function gives.
        inputs: Nodes it is given.
        total: Node of the sum, where the fused function gives that too.
        skipped: Modules that are not called any more.
    """

    site: Site
    members: tuple[str, ...]
    stock: Function
    last: fx.Node
    inputs: tuple[fx.Node, ...]
    total: fx.Node | None
    skipped: tuple[str, ...]

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """What the function stands for, in order."""
        found, near = dict.fromkeys([self.last]), [self.last]
        while near:
            inner = [each for each in near.pop().all_input_nodes if each not in self.inputs]
            near += [each for each in inner if each not in found]
            found |= dict.fromkeys(inner)
        return tuple(reversed(found))


def find_chains(block: nn.Module, graph: fx.Graph) -> list[Chain]:
    """Find the chains of a traced block; none overlaps another.

    Args:
        block: The block.
        graph: What its forward does; each node's ``meta["value"]`` is a live value, and
            ``meta["writes"]`` tells whether it wrote into one of its inputs.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    found: list[Chain] = []
    taken: set[fx.Node] = set()
    # A gate begins with an activation that a pair would take from it.
    for find, node in itertools.product((_gate, _head, _add_norm, _loss), graph.nodes):
        chain = find(block, node)
        if chain is None or taken & set(chain.nodes):
            continue
        if _undisturbed(graph, chain):
            taken |= set(chain.nodes)
            found.append(chain)
    return sorted(found, key=lambda chain: order[chain.last])


def _undisturbed(graph: fx.Graph, chain: Chain) -> bool:
    """Tell whether nothing is written to between the parts: one call reads all at one time."""
    own = set(chain.nodes)
    left = len(own)
    for node in graph.nodes:
        if node in own:
            left -= 1
        elif 0 < left < len(own) and node.meta.get("writes"):
            return False
    return True


def _head(block: nn.Module, node: fx.Node) -> Chain | None:
    """Find head → activation and head → addition → activation; node is the activation."""
    act = _activation(block, node)
    if act is None:
        return None
    (before,) = node.all_input_nodes
    if len(before.users) != 1:
        return None
    find = _pair if before.op == "call_module" else _triple
    return find(block, act, before)


def _pair(block: nn.Module, act: _Act, head: fx.Node) -> Chain | None:
    name = _head_name(block, head, act.name)
    if name is None:
        return None
    apply = ACTIVATIONS[act.name]

    def stock(module: nn.Module, x: Tensor) -> Any:  # noqa: ANN401 - a tensor
        return apply(type(module).forward(module, x))

    pattern: Any = f"{name} → act"
    return _chain(block, act, pattern, stock, head.all_input_nodes, head)


def _triple(block: nn.Module, act: _Act, total: fx.Node) -> Chain | None:
    if total.target not in ADDITIONS or total.kwargs or len(total.args) != 2:  # noqa: PLR2004 - x + y
        return None
    terms = [each for each in total.args if isinstance(each, fx.Node)]
    orders = [terms, terms[::-1]] if len(terms) == len(total.args) else []
    if total.target not in PURE_ADDITIONS:
        # The sum is written over its first term, which must be the norm's own result.
        orders = orders[:1]
    chains = (_added(block, act, head, residual) for head, residual in orders)
    return next((chain for chain in chains if chain is not None), None)


def _added(block: nn.Module, act: _Act, head: fx.Node, residual: fx.Node) -> Chain | None:
    if len(head.users) != 1 or _head_name(block, head, act.name) != "BatchNorm2d":
        return None
    apply = ACTIVATIONS[act.name]

    def stock(module: nn.Module, x: Tensor, residual: Tensor) -> Any:  # noqa: ANN401 - a tensor
        return apply(type(module).forward(module, x) + residual)

    inputs = [*head.all_input_nodes, residual]
    return _chain(block, act, "BatchNorm2d → add → act", stock, inputs, head)


def _gate(block: nn.Module, node: fx.Node) -> Chain | None:
    """Find act(gate) * up; node is the product."""
    terms = [each for each in node.args if isinstance(each, fx.Node)]
    if node.target not in PRODUCTS or len(terms) != 2 or node.kwargs:  # noqa: PLR2004 - x * y
        return None
    for gated, up in (terms, terms[::-1]):
        act = _activation(block, gated) if len(gated.users) == 1 else None
        if act is not None and act.name in GATES and gated is not up:
            stock = functools.partial(_stock_gate, ACTIVATIONS[act.name])
            act = act._replace(node=node)
            return _chain(block, act, "gate", stock, [*gated.all_input_nodes, up])
    return None


def _stock_gate(apply: Callable[..., Tensor], gate: Tensor, up: Tensor) -> Tensor:
    return apply(gate) * up


def _add_norm(block: nn.Module, node: fx.Node) -> Chain | None:
    """Find addition → norm; node is the norm."""
    if node.op != "call_module" or not _plain_call(node):
        return None
    (total,) = node.all_input_nodes
    inputs = [each for each in total.args if isinstance(each, fx.Node)]
    pure = total.target in PURE_ADDITIONS and not total.kwargs and len(total.args) == 2  # noqa: PLR2004
    value = total.meta.get("value")
    if not pure or len(inputs) != len(total.args) or not isinstance(value, Tensor):
        return None
    form = norm_form(block.get_submodule(_path(node)), value)
    if form is None:
        return None
    act = _Act(node, "", ())
    chain = _chain(block, act, "add → norm", stock_add_norm(form), inputs, node)
    if chain is None:
        return None
    return chain._replace(site=chain.site._replace(norm=form), total=total)


def _loss(_block: nn.Module, node: fx.Node) -> Chain | None:
    """Find a cross-entropy of logits and class indices; node is the loss."""
    call = find_loss(node)
    if call is None:
        return None
    values = tuple(each.meta["value"] for each in call.inputs)
    site = Site("cross-entropy", (), values, loss=call.form)
    return Chain(site, (), call.stock, node, call.inputs, None, ())


def _chain(  # noqa: PLR0917 - what a chain is made of
    block: nn.Module,
    act: _Act,
    pattern: Pattern,
    stock: Function,
    inputs: Sequence[fx.Node],
    owner: fx.Node | None = None,
) -> Chain | None:
    members = () if owner is None else (_path(owner),)
    values = tuple(each.meta.get("value") for each in inputs)
    if not all(isinstance(value, Tensor) for value in values):
        return None
    modules = tuple(block.get_submodule(path) for path in members)
    site = Site(pattern, modules, values, activation=act.name)
    skipped = (*members, *act.skipped)
    return Chain(site, members, stock, act.node, tuple(inputs), None, skipped)


def _activation(block: nn.Module, node: fx.Node) -> _Act | None:
    """Name the activation a node computes, and the module it calls for it."""
    if len(node.all_input_nodes) != 1:
        return None
    if node.op == "call_module":
        path = _path(node)
        name = recognise_activation(block.get_submodule(path))
        return None if name is None else _Act(node, name, (path,))
    if node.target is F.gelu:
        tanh = node.kwargs.get("approximate", "none") == "tanh"
        return _Act(node, "gelu_tanh" if tanh else "gelu", ())
    name = FUNCTIONS.get(node.target) if node.op != "placeholder" else None
    return None if name is None else _Act(node, name, ())


def _head_name(block: nn.Module, node: fx.Node, activation: str) -> str | None:
    if node.op != "call_module" or not _plain_call(node):
        return None
    name, fits = HEADS.get(type(block.get_submodule(_path(node))), ("", ()))
    return name if activation in fits else None


def _plain_call(node: fx.Node) -> bool:
    return len(node.args) == 1 and not node.kwargs and len(node.all_input_nodes) == 1


def _path(node: fx.Node) -> str:
    return str(node.target)
