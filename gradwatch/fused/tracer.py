"""Write down what a forward does, beside live values; some children are looked into."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from gradwatch.fused.eager import Beside, backwards_refused
from gradwatch.fused.fixed import contents, is_plain
from gradwatch.fused.guards import ARGUMENT, FORWARD, Read, drew, reads_noted, surroundings
from gradwatch.fused.proxies import Typed, types_answered
from gradwatch.hooks import tensors_in
from gradwatch.non_finite.capture import rng_preserved
from gradwatch.non_finite.rng import RandomState

__all__ = ["Frame", "Opaque", "Tracer", "copied", "versions"]

Frame = tuple[str, int]
"""Path of a child that was looked into, and which of its calls it was."""


class Opaque(Exception):  # noqa: N818 - a verdict, not an error
    """A child cannot be looked into.

    Args:
        path: Where it lies below the block.
        reason: Why.
    """

    def __init__(self, path: str, reason: str) -> None:
        """Keep both."""
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class Tracer(fx.Tracer):
    """Writes down what a block does.

    Args:
        root: The block.
        outputs: What each child that stays whole gave when the block ran, in order, and whether it
            wrote into its inputs.
        device: Device type.
        open_: Paths of the children whose own forward is written down in place of their call.

    Attributes:
        entered: How often each child was looked into.
        left_marks: Whether the forward changed what the block holds.
        draws: Whether it drew random numbers.
        reads: Attributes of modules and of arguments that it read.
        asked: Names of arguments that hold no tensor themselves, and of attributes of theirs.
    """

    def __init__(
        self,
        root: nn.Module,
        outputs: Mapping[str, list[tuple[Any, bool]]],
        device: str,
        open_: Collection[str] = (),
    ) -> None:
        """Begin with an empty graph."""
        super().__init__()
        self._device, self._settings = device, surroundings(device)
        self.root, self._outputs, self._open = root, outputs, open_
        self.graph = fx.Graph(tracer_cls=type(self))
        self.tensor_attrs = {}
        self._paths = {module: name for name, module in root.named_modules()}
        self.submodule_paths = dict(self._paths)
        self._frames: tuple[Frame, ...] = ()
        self.entered: Counter[str] = Counter()
        self.left_marks = self.draws = False
        self.reads: list[Read] = []
        self.asked: dict[tuple[str, str], None] = {}
        self._beside = Beside(root)

    def write_down(self, values: Mapping[str, Any]) -> fx.Graph:
        """Run the block's forward on proxies.

        Args:
            values: Its arguments by name.

        Returns:
            The graph. Each node's ``meta["value"]`` is a live value, ``meta["writes"]`` tells
            whether it wrote into an input, ``meta["within"]`` gives the frames it was written down
            in, the outermost first.

        Raises:
            Opaque: If a child that was looked into cannot be written down.
        """
        given, before = {}, _contents(self.root)
        for name, value in values.items():
            given[name] = value if is_plain(value) else self._placeholder(name, value)
        # Gradients are on, as in training: what switches them off, or recomputes, shows.
        with torch.enable_grad(), self._modules_caught(), reads_noted(self._paths) as self.reads:
            self._settings, random = surroundings(self._device), RandomState.take()
            with types_answered(), backwards_refused(self._beside), self._beside:
                result = type(self.root).forward(self.root, **given)
            self.draws = drew(random, RandomState.take())
            # What is read of a child's output as it is handed on is an operation too.
            self.create_node("output", "output", (self.create_arg(result),), {})
        objects = {name for name, value in values.items() if not isinstance(value, Tensor)}
        self.reads += [(ARGUMENT, ".".join(each)) for each in self.asked if each[0] in objects]
        self.reads += [*self._beside.told, *((path, FORWARD) for path in ("", *self.entered))]
        self.left_marks = _contents(self.root) != before
        return self.graph

    def _placeholder(self, name: str, value: Any) -> fx.Proxy:  # noqa: ANN401 - any input
        node = self.create_node("placeholder", name, (), {})
        node.meta["value"] = copied(value)
        return Typed(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Leave it to the call that was caught."""
        del m, module_qualified_name
        return True

    def create_arg(self, a: Any) -> Any:  # noqa: ANN401 - what fx takes
        """Lower an argument; what holds others in a type of its own keeps that type.

        Args:
            a: The argument.

        Raises:
            TypeError: If it is a container that would come out as another.
        """
        if dataclasses.is_dataclass(a) and not isinstance(a, type):
            held = {each.name: getattr(a, each.name) for each in dataclasses.fields(a)}
            lowered = {name: self.create_arg(value) for name, value in held.items()}
            return self.create_node("call_function", type(a), (), lowered)
        if isinstance(a, dict) and type(a) is not dict:
            raise TypeError(f"a {type(a).__name__} would come out as a dict")
        return super().create_arg(a)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Write a node down; a parameter's own node has its value at once.

        Args:
            *args: Of fx.
            **kwargs: Of fx.

        Raises:
            RuntimeError: If the forward has set something for a part of it (no gradients, autocast,
                a checkpoint), which the graph would run without.
        """
        if args[0] in ("call_function", "call_method", "call_module"):
            self._refuse_settings()
        node = super().create_node(*args, **kwargs)
        node.meta["within"] = self._frames
        if node.op == "get_attr":
            node.meta["value"] = _attribute(self.root, str(node.target))
        return node

    def _refuse_settings(self) -> None:
        if surroundings(self._device) != self._settings:
            raise RuntimeError("a part of it runs under settings of its own")

    def create_proxy(self, *args: Any, **kwargs: Any) -> fx.Proxy:
        """Write an operation down and run it on the values.

        Args:
            *args: Of fx.
            **kwargs: Of fx.
        """
        kwargs["proxy_factory_fn"] = lambda node: Typed(node, self)
        proxy = super().create_proxy(*args, **kwargs)
        meta = proxy.node.meta
        meta["value"], meta["writes"] = self._value(proxy.node)
        return proxy

    def _value(self, node: fx.Node) -> tuple[Any, bool]:
        if node.op == "call_module":
            return self._outputs[str(node.target)].pop(0)
        with self._beside.pausing(), torch.no_grad(), rng_preserved():
            before = versions(_live(node.args), _live(node.kwargs))
            value = _called(node)
            return value, versions(_live(node.args), _live(node.kwargs)) != before

    @contextmanager
    def _modules_caught(self) -> Iterator[None]:
        inner = nn.Module.__call__
        tracer = self

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            path = tracer._paths.get(module)
            if not path:
                return inner(module, *args, **kwargs)
            if path in tracer._open:
                return tracer._look_into(path, module, args, kwargs)
            return tracer.create_proxy("call_module", path, args, kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = inner  # type: ignore[method-assign]

    def _look_into(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:  # noqa: ANN401 - what the child gives
        # What its caller has set is the caller's fault.
        self._refuse_settings()
        self.entered[path] += 1
        outer, self._frames = self._frames, (*self._frames, (path, self.entered[path]))
        try:
            return type(module).forward(module, *args, **kwargs)
        except Opaque:
            raise
        except Exception as error:
            raise Opaque(path, f"it cannot be traced ({type(error).__name__})") from error
        finally:
            self._frames = outer


def _live(given: Any) -> Any:  # noqa: ANN401 - arguments of a node
    return fx.node.map_arg(given, lambda each: each.meta["value"])


def _called(node: fx.Node) -> Any:  # noqa: ANN401 - any value
    args, kwargs = _live(node.args), _live(node.kwargs)
    if node.op == "call_method":
        own, *rest = args
        return getattr(own, str(node.target))(*rest, **kwargs)
    call: Any = node.target
    return call(*args, **kwargs)


def versions(*given: Any) -> list[int]:
    """Say how often each tensor was written into.

    Args:
        *given: What a module or a function is given.
    """
    return [each._version for each in tensors_in(given)]  # noqa: SLF001 - no public query


def copied(value: Any) -> Any:  # noqa: ANN401 - any input
    """Copy a tensor, which a forward may write into; give anything else as it is.

    Args:
        value: Any input.
    """
    return value.detach().clone() if isinstance(value, Tensor) else value


def _contents(module: nn.Module) -> list[tuple[str, list[int]]]:
    return [
        (f"{path}.{name}", list(contents(value)))
        for path, each in module.named_modules()
        for name, value in vars(each).items()
    ]


def _attribute(root: nn.Module, path: str) -> Any:  # noqa: ANN401 - a parameter or buffer
    value: Any = root
    for name in path.split("."):
        value = getattr(value, name)
    return value
