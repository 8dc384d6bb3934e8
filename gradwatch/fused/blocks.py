"""Trace a block's own forward on live values, and that of children which are looked into."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from gradwatch.fused.fixed import Unfixable, is_plain
from gradwatch.fused.guards import Read, guard
from gradwatch.fused.observe import Visit
from gradwatch.fused.runs import bare_copy, half_set
from gradwatch.fused.tracer import Opaque, Tracer, copied, versions
from gradwatch.non_finite.capture import rng_preserved
from gradwatch.undo import Undo

__all__ = ["Traced", "trace"]


class Traced(NamedTuple):
    """A block's forward, written down.

    Attributes:
        graph: What it does; each node's ``meta["value"]`` is a live value, ``meta["within"]`` tells
            the children it was written down in.
        arguments: Names of its arguments, in the order of its signature, then those of keywords
            that it passes on.
        handed: Those that the graph is handed; the others are plain values, and fixed.
        guard: What was specialised.
        reads: Attributes of modules that the forward reads: their values are fixed.
        entered: Paths of the children that are not called any more, their own forward being part
            of the graph, and how often the block called each.
    """

    graph: fx.Graph
    arguments: tuple[str, ...]
    handed: tuple[str, ...]
    guard: tuple[Any, ...]
    reads: tuple[Read, ...]
    entered: Mapping[str, int]


def trace(block: nn.Module, visit: Visit, open_: Collection[str] = ()) -> Traced | str:
    """Trace what a block does with the inputs of a live call.

    Args:
        block: A module with children.
        visit: The live call.
        open_: Paths of the children to look into; every other one stays one call, and so does one
            that turns out to be opaque.

    Returns:
        The trace, or why there is none.
    """
    try:
        return _trace(block, visit, open_)
    except Opaque as opaque:
        return trace(block, visit, {path for path in open_ if not _below(path, opaque.path)})
    except Unfixable:
        return "its forward reads more than can be looked at in each call"
    except Exception as error:  # noqa: BLE001 - a forward may do anything
        return f"its forward cannot be traced ({type(error).__name__})"


def _below(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.")


def _trace(block: nn.Module, visit: Visit, open_: Collection[str]) -> Traced | str:
    signature = inspect.signature(type(block).forward)
    bound = signature.bind(block, *visit.args, **visit.kwargs)
    bound.apply_defaults()
    names, spread = _named_arguments(type(block))
    values = {name: bound.arguments[name] for name in names} | bound.arguments.get(spread, {})
    if len(bound.args) > len(names) + 1:
        return "its forward takes any number of inputs"
    twin = bare_copy(block)
    with rng_preserved(), torch.no_grad(), half_set(visit.half):
        outputs = _children_outputs(twin, values, open_)
        tracer = Tracer(twin, outputs, visit.half.device, open_)
        graph = tracer.write_down(values)
    if tracer.left_marks:
        return "its forward changes what the module holds"
    if tracer.draws:
        return "its forward draws random numbers that may decide which way it goes"
    handed = tuple(name for name, value in values.items() if not is_plain(value))
    reads = tuple(tracer.reads)
    known = guard(block, values, visit.half, reads)
    return Traced(graph, tuple(values), handed, known, reads, dict(tracer.entered))


def _named_arguments(kind: type[nn.Module]) -> tuple[list[str], str]:
    """Name a forward's arguments but ``self`` and ``*args``, and that of ``**kwargs``."""
    _, *own = inspect.signature(kind.forward).parameters.values()
    spread = next((each.name for each in own if each.kind == each.VAR_KEYWORD), "")
    named = [each.name for each in own if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return named, spread


def _children_outputs(
    twin: nn.Module, values: Mapping[str, Any], open_: Collection[str]
) -> dict[str, list[tuple[Any, bool]]]:
    """Run the block once and keep what each child that stays whole gives, in order."""
    outputs: dict[str, list[tuple[Any, bool]]] = {name: [] for name, _ in twin.named_modules()}
    undo, running = Undo(), list[list[int]]()

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        running.append(versions(args, kwargs))

    for name, module in twin.named_modules():
        if module is not twin and name not in open_:
            keeper = _keeper(outputs[name], running)
            undo.add(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            undo.add(module.register_forward_hook(keeper, with_kwargs=True).remove)
    try:
        type(twin).forward(twin, **{name: copied(value) for name, value in values.items()})
    finally:
        undo()
    return outputs


def _keeper(kept: list[tuple[Any, bool]], running: list[list[int]]) -> Callable[..., None]:
    def keep(_module: nn.Module, args: object, kwargs: object, output: Any) -> None:  # noqa: ANN401
        before = running.pop()
        # What a child that stays whole calls is its own affair.
        if not running:
            # A copy: the block may go on to write into it.
            copy = torch.utils._pytree.tree_map_only(Tensor, Tensor.clone, output)  # noqa: SLF001
            kept.append((copy, versions(args, kwargs) != before))

    return keep
