"""Trace a block's own forward on live values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from gradwatch.fused.guards import (
    Read,
    drew,
    guard,
    is_plain,
    reads_noted,
    surroundings,
)
from gradwatch.fused.observe import Visit
from gradwatch.fused.runs import bare_copy, half_set
from gradwatch.non_finite.capture import rng_preserved
from gradwatch.non_finite.rng import RandomState
from gradwatch.undo import Undo

__all__ = ["Traced", "trace"]

# What a proxy answers with the live value's own; a call of another type goes the stock way.
SPECIALISED = frozenset({"dtype", "device", "is_cuda", "ndim"})


class Traced(NamedTuple):
    """A block's forward, written down.

    Attributes:
        graph: What it does; each node's ``meta["value"]`` is a live value.
        arguments: Names of its arguments, in the order of its signature, then those of keywords
            that it passes on.
        handed: Those that the graph is handed; the others are plain values, and fixed.
        guard: What was specialised.
        reads: Attributes of modules that the forward reads: their values are fixed.
    """

    graph: fx.Graph
    arguments: tuple[str, ...]
    handed: tuple[str, ...]
    guard: tuple[Any, ...]
    reads: tuple[Read, ...]


def trace(block: nn.Module, visit: Visit) -> Traced | str:
    """Trace what a block does with the inputs of a live call.

    Args:
        block: A module with children; each of them stays one call.
        visit: The live call.

    Returns:
        The trace, or why there is none.
    """
    try:
        return _trace(block, visit)
    except Exception as error:  # noqa: BLE001 - a forward may do anything
        return f"its forward cannot be traced ({type(error).__name__})"


def _trace(block: nn.Module, visit: Visit) -> Traced | str:
    signature = inspect.signature(type(block).forward)
    bound = signature.bind(block, *visit.args, **visit.kwargs)
    bound.apply_defaults()
    names, spread = _named_arguments(type(block))
    values = {name: bound.arguments[name] for name in names} | bound.arguments.get(spread, {})
    if len(bound.args) > len(names) + 1:
        return "its forward takes any number of inputs"
    twin = bare_copy(block)
    with rng_preserved(), torch.no_grad(), half_set(visit.half):
        tracer = _Tracer(twin, _children_outputs(twin, values), visit.half.device)
        graph = tracer.write_down(values)
    if tracer.left_marks:
        return "its forward changes what the module holds"
    if tracer.draws:
        return "its forward draws random numbers that may decide which way it goes"
    handed = tuple(name for name, value in values.items() if not is_plain(value))
    reads = tuple(tracer.reads)
    known = guard(block, values, visit.half, reads)
    return Traced(graph, tuple(values), handed, known, reads)


def _named_arguments(kind: type[nn.Module]) -> tuple[list[str], str]:
    """Name a forward's arguments but ``self`` and ``*args``, and that of ``**kwargs``."""
    _, *own = inspect.signature(kind.forward).parameters.values()
    spread = next((each.name for each in own if each.kind == each.VAR_KEYWORD), "")
    named = [each.name for each in own if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return named, spread


def _children_outputs(twin: nn.Module, values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Run the block once and keep what each of its children gives, in order."""
    outputs: dict[str, list[Any]] = {name: [] for name, _ in twin.named_modules()}
    undo = Undo()
    for name, module in twin.named_modules():
        if module is not twin:
            undo.add(module.register_forward_hook(_keeper(outputs[name])).remove)
    try:
        type(twin).forward(twin, **_copies(values))
    finally:
        undo()
    return outputs


def _keeper(kept: list[Any]) -> Callable[..., None]:
    def keep(_module: nn.Module, _args: object, output: Any) -> None:  # noqa: ANN401 - any output
        # A copy: the block may go on to write into it.
        kept.append(torch.utils._pytree.tree_map_only(Tensor, Tensor.clone, output))  # noqa: SLF001

    return keep


def _copies(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) for name, value in values.items()}


def _copy(value: Any) -> Any:  # noqa: ANN401 - any input
    return value.detach().clone() if isinstance(value, Tensor) else value


class _Typed(fx.Proxy):
    """A proxy that knows its value's type, so that code which branches on it can be traced."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the value's
        if name in SPECIALISED:
            return getattr(self.node.meta["value"], name)
        return super().__getattr__(name)

    def dim(self) -> int:
        """Give the number of dimensions, which is specialised."""
        dimensions: int = self.node.meta["value"].dim()
        return dimensions


class _Tracer(fx.Tracer):
    """Writes down one level of modules, beside live values.

    Args:
        root: The block.
        outputs: What each child gave when the block ran, in order.
        device: Device type.
    """

    def __init__(self, root: nn.Module, outputs: dict[str, list[Any]], device: str) -> None:
        super().__init__()
        self._device, self._settings = device, surroundings(device)
        self.root, self._outputs = root, outputs
        self.graph = fx.Graph(tracer_cls=type(self))
        self.tensor_attrs = {}
        self._paths = {module: name for name, module in root.named_modules()}
        self.submodule_paths = dict(self._paths)
        self.left_marks = self.draws = False
        self.reads: list[Read] = []

    def write_down(self, values: Mapping[str, Any]) -> fx.Graph:
        """Run the block's forward on proxies."""
        given, before = {}, _contents(self.root)
        for name, value in values.items():
            given[name] = value if is_plain(value) else self._placeholder(name, value)
        # Gradients are on, as in training: what switches them off, or recomputes, shows.
        with torch.enable_grad(), self._modules_caught(), reads_noted(self._paths) as self.reads:
            self._settings, random = surroundings(self._device), RandomState.take()
            result = type(self.root).forward(self.root, **given)
            self.draws = drew(random, RandomState.take())
        self.create_node("output", "output", (self.create_arg(result),), {})
        self.left_marks = _contents(self.root) != before
        return self.graph

    def _placeholder(self, name: str, value: Any) -> fx.Proxy:  # noqa: ANN401 - any input
        node = self.create_node("placeholder", name, (), {})
        node.meta["value"] = _copy(value)
        return _Typed(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Leave every child whole."""
        del m, module_qualified_name
        return True

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Write a node down; a parameter's own node has its value at once.

        Raises:
            RuntimeError: If the forward has set something for a part of it (no gradients, autocast,
                a checkpoint), which the graph would run without.
        """
        if args[0] in ("call_function", "call_method", "call_module"):
            self._refuse_settings()
        node = super().create_node(*args, **kwargs)
        if node.op == "get_attr":
            node.meta["value"] = _attribute(self.root, str(node.target))
        return node

    def _refuse_settings(self) -> None:
        if surroundings(self._device) != self._settings:
            message = "a part of it runs under settings of its own"
            raise RuntimeError(message)

    def create_proxy(self, *args: Any, **kwargs: Any) -> fx.Proxy:
        """Write an operation down and run it on the values."""
        kwargs["proxy_factory_fn"] = lambda node: _Typed(node, self)
        proxy = super().create_proxy(*args, **kwargs)
        proxy.node.meta["value"] = self._value(proxy.node)
        return proxy

    def _value(self, node: fx.Node) -> Any:  # noqa: ANN401 - any value
        def live(each: fx.Node) -> Any:  # noqa: ANN401
            return each.meta["value"]

        if node.op == "call_module":
            return self._outputs[str(node.target)].pop(0)
        with torch.no_grad(), rng_preserved():
            return _called(node, live)

    @contextmanager
    def _modules_caught(self) -> Iterator[None]:
        inner = nn.Module.__call__
        tracer = self

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            path = tracer._paths.get(module)
            if path:
                return tracer.create_proxy("call_module", path, args, kwargs)
            return inner(module, *args, **kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = inner  # type: ignore[method-assign]


def _called(node: fx.Node, live: Callable[[fx.Node], Any]) -> Any:  # noqa: ANN401 - any value
    args, kwargs = fx.node.map_arg(node.args, live), fx.node.map_arg(node.kwargs, live)
    if node.op == "call_method":
        own, *rest = args
        return getattr(own, str(node.target))(*rest, **kwargs)
    call: Any = node.target
    return call(*args, **kwargs)


def _contents(module: nn.Module) -> dict[str, tuple[str, int]]:
    return {
        f"{path}.{name}": (name, id(value))
        for path, each in module.named_modules()
        for name, value in vars(each).items()
    }


def _attribute(root: nn.Module, path: str) -> Any:  # noqa: ANN401 - a parameter or buffer
    value: Any = root
    for name in path.split("."):
        value = getattr(value, name)
    return value
