"""Make forwards out of a traced block's graph; a call the trace does not fit goes the stock way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx, nn

from gradwatch.fused.blocks import Traced
from gradwatch.fused.guards import guard, members
from gradwatch.fused.observe import half_now
from gradwatch.fused.operation import Function

__all__ = ["make_forward"]


def make_forward(
    block: nn.Module, traced: Traced, made: tuple[fx.Graph, list[fx.Node]], skipped: Sequence[str]
) -> Callable[[Sequence[Function]], Function]:
    """Make what makes a block's forward out of the functions that stand for its chains.

    Args:
        block: The block.
        traced: The trace.
        made: The graph with one call a chain, and those calls.
        skipped: Paths of the modules that functions stand for.
    """
    # Written out once: the graph holds live values, and goes.
    graph, calls = made
    written = graph.python_code("self")
    source, space = written.src, dict(written.globals)
    places = [next(name for name, own in space.items() if own is call.target) for call in calls]
    known, entered = traced._replace(graph=fx.Graph()), tuple(traced.entered)
    stay = members(block, skipped, entered)

    def build(functions: Sequence[Function]) -> Function:
        own = _guarded(known, _run(source, {**space, **dict(zip(places, functions, strict=True))}))

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the stock one's
            chosen = own if members(self, skipped, entered) == stay else type(self).forward
            return chosen(self, *args, **kwargs)

        # Others ask a model which arguments it takes: generate() of transformers is one.
        vars(forward)["__signature__"] = inspect.signature(type(block).forward)
        return forward

    return build


def _run(source: str, space: dict[str, Any]) -> Callable[..., Any]:
    exec(compile(source, "<gradwatch fused block>", "exec"), space)  # noqa: S102 - torch.fx's own way
    run: Callable[..., Any] = space["forward"]
    return run


def _guarded(traced: Traced, run: Callable[..., Any]) -> Function:
    names, handed = traced.arguments, traced.handed
    defaults: dict[str, Any] = {}

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the stock one's
        if not defaults:
            defaults.update(_defaults(type(self), names))
        by_name = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        given = {name: by_name[name] for name in names if name in by_name}
        fits = len(given) == len(names) == len(by_name) and len(args) <= len(names)
        device = next((t.device.type for t in given.values() if isinstance(t, Tensor)), "cpu")
        if not fits or guard(self, given, half_now(device), traced.reads) != traced.guard:
            return type(self).forward(self, *args, **kwargs)
        return run(self, *(given[name] for name in handed))

    return forward


def _defaults(kind: type[nn.Module], names: Sequence[str]) -> dict[str, Any]:
    known = inspect.signature(kind.forward).parameters
    return {
        name: known[name].default
        for name in names
        if name in known and known[name].default is not inspect.Parameter.empty
    }
