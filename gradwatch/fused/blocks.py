"""Trace a block's own forward on live values, and make forwards out of the graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from gradwatch.fused.observe import Visit, half_now
from gradwatch.fused.operation import Function, Half
from gradwatch.fused.runs import bare_copy, half_set
from gradwatch.non_finite.capture import rng_preserved
from gradwatch.undo import Undo

__all__ = ["Traced", "make_forward", "trace"]

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
    """

    graph: fx.Graph
    arguments: tuple[str, ...]
    handed: tuple[str, ...]
    guard: tuple[Any, ...]


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
        tracer = _Tracer(twin, _children_outputs(twin, values))
        graph = tracer.write_down(values)
    if tracer.left_marks:
        return "its forward changes what the module holds"
    handed = tuple(name for name, value in values.items() if not _is_plain(value))
    return Traced(graph, tuple(values), handed, _guard(block, values, visit.half))


def _named_arguments(kind: type[nn.Module]) -> tuple[list[str], str]:
    """Name a forward's arguments but ``self`` and ``*args``, and that of ``**kwargs``."""
    _, *own = inspect.signature(kind.forward).parameters.values()
    spread = next((each.name for each in own if each.kind == each.VAR_KEYWORD), "")
    named = [each.name for each in own if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return named, spread


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str | type(None))


def _guard(block: nn.Module, values: Mapping[str, Any], half: Half) -> tuple[Any, ...]:
    kinds = tuple(_kind(value) for value in values.values())
    return kinds, half.dtype, tuple(each.training for each in block.modules())


def _kind(value: object) -> object:
    if isinstance(value, Tensor):
        return value.dtype, value.dim(), value.device.type, type(value)
    return value if _is_plain(value) else type(value)


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
    """

    def __init__(self, root: nn.Module, outputs: dict[str, list[Any]]) -> None:
        super().__init__()
        self.root, self._outputs = root, outputs
        self.graph = fx.Graph(tracer_cls=type(self))
        self.tensor_attrs = {}
        self._paths = {module: name for name, module in root.named_modules()}
        self.submodule_paths = dict(self._paths)
        self.left_marks = False

    def write_down(self, values: Mapping[str, Any]) -> fx.Graph:
        """Run the block's forward on proxies."""
        given, before = {}, _contents(self.root)
        for name, value in values.items():
            given[name] = value if _is_plain(value) else self._placeholder(name, value)
        with self._modules_caught():
            result = type(self.root).forward(self.root, **given)
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
        """Write a node down; a parameter's own node has its value at once."""
        node = super().create_node(*args, **kwargs)
        if node.op == "get_attr":
            node.meta["value"] = _attribute(self.root, str(node.target))
        return node

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
        args, kwargs = fx.node.map_arg(node.args, live), fx.node.map_arg(node.kwargs, live)
        if node.op == "call_method":
            own, *rest = args
            return getattr(own, str(node.target))(*rest, **kwargs)
        call: Any = node.target
        return call(*args, **kwargs)

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


def make_forward(traced: Traced, graph: fx.Graph, calls: Sequence[fx.Node]) -> Callable[
    [Sequence[Function]], Function
]:  # fmt: skip
    """Make what makes a block's forward out of the functions that stand for its chains.

    Args:
        traced: The trace.
        graph: The graph with one call a chain.
        calls: Those calls.
    """

    def build(functions: Sequence[Function]) -> Function:
        for node, function in zip(calls, functions, strict=True):
            node.target = function
        return _guarded(traced, _compiled(graph))

    return build


def _compiled(graph: fx.Graph) -> Callable[..., Any]:
    code = graph.python_code("self")
    space = dict(code.globals)
    exec(compile(code.src, "<gradwatch fused block>", "exec"), space)  # noqa: S102 - torch.fx's own way
    run: Callable[..., Any] = space["forward"]
    return run


def _guarded(traced: Traced, run: Callable[..., Any]) -> Function:
    names, handed, guard = traced.arguments, traced.handed, traced.guard
    defaults: dict[str, Any] = {}

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the stock one's
        if not defaults:
            defaults.update(_defaults(type(self), names))
        by_name = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        given = {name: by_name[name] for name in names if name in by_name}
        fits = len(given) == len(names) == len(by_name) and len(args) <= len(names)
        device = next((t.device.type for t in given.values() if isinstance(t, Tensor)), "cpu")
        if not fits or _guard(self, given, half_now(device)) != guard:
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
