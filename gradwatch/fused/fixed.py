"""The plain values in what a module holds: a trace has fixed them, so that they are compared."""

from __future__ import annotations

import enum
import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Unfixable", "changeable", "contents", "fixed", "is_plain"]

DEEPEST = 5
# A table of words is compared as a whole: it is filled once.
MOST = 256
PLAIN = frozenset({type(None), bool, int, float, str})
# Classes and arrays: a trace calls them or is handed them, and fixes nothing of theirs.
LIVE = (Tensor, nn.Module, type, types.ModuleType)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
NAMES = (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum, range, slice)
SEQUENCES = (list, tuple, set, frozenset, deque)
SPACES = (dict, list, tuple, types.SimpleNamespace)


class Unfixable(Exception):  # noqa: N818 - a verdict, not an error
    """So much hangs on a value that nobody could tell at each call whether it is the same."""


def is_plain(value: object) -> bool:
    """Tell whether a trace fixes a value by itself.

    Args:
        value: Any value.
    """
    return isinstance(value, bool | int | float | str | type(None))


def changeable(value: object) -> bool:
    """Tell whether a later call may find something else in what an attribute holds.

    Args:
        value: What it holds.
    """
    if isinstance(value, types.MethodType):
        # Of a module's methods each read is noted by itself.
        return not isinstance(value.__self__, LIVE)
    written_out = isinstance(value, (*FUNCTIONS, functools.partial))
    if is_plain(value) or written_out:
        return True
    ours = type(value).__module__.partition(".")[0] not in ("torch", "builtins", "functools")
    return not isinstance(value, LIVE) and (ours or not callable(value))


def fixed(value: object) -> object:
    """Give the plain values in what an attribute holds, also deep inside.

    Args:
        value: What it holds.

    Raises:
        Unfixable: If it holds a world.
    """
    return _Walk().of(value, DEEPEST)


class _Walk:
    """Counts what it meets."""

    def __init__(self) -> None:
        self._left = MOST

    def of(self, value: Any, depth: int) -> object:  # noqa: ANN401 - a value of any kind
        if type(value) in PLAIN:
            return value
        self._left -= 1
        if not depth or not self._left:
            raise Unfixable
        if isinstance(value, dict):
            return self._items(value, depth)
        if isinstance(value, SEQUENCES):
            return self._sequence(value, depth)
        if is_plain(value) or isinstance(value, NAMES):
            return value
        if isinstance(value, np.ndarray | np.generic):
            return value.dtype, value.shape, value.tobytes()
        return self._callable(value, depth) if callable(value) else self._object(value, depth)

    def _inner(self, value: Any, depth: int) -> object:  # noqa: ANN401
        return type(value) if isinstance(value, LIVE) else self.of(value, depth - 1)

    def _items(self, value: dict[Any, Any], depth: int) -> object:
        if len(value) > MOST:
            return id(value), len(value)
        return tuple(
            (name, own if type(own) in PLAIN else self._inner(own, depth))
            for name, own in value.items()
        )

    def _sequence(self, value: Any, depth: int) -> object:  # noqa: ANN401
        if len(value) > MOST:
            return id(value), len(value)
        return tuple(
            id(each) if isinstance(each, LIVE) else self.of(each, depth - 1) for each in value
        )

    def _callable(self, value: Any, depth: int) -> object:  # noqa: ANN401
        if isinstance(value, functools.partial):
            held = (value.func, value.args, value.keywords)
            return tuple(self._inner(each, depth) for each in held)
        if isinstance(value, types.FunctionType):
            # Functions call each other, and themselves: what all of them read comes at once.
            read = (each() for each in _read_by(value))
            return value, tuple(
                each if isinstance(each, FUNCTIONS) else self._inner(each, depth) for each in read
            )
        if isinstance(value, types.MethodType):
            return value.__func__, self._inner(value.__self__, depth)
        return value if isinstance(value, FUNCTIONS) else self._object(value, depth)

    def _object(self, value: Any, depth: int) -> object:  # noqa: ANN401
        if isinstance(value, LIVE):
            return type(value)
        held = getattr(value, "__dict__", {})
        if slots := _slots(value.__class__):
            held = held | {name: getattr(value, name, None) for name in slots}
        return self._items(held, depth) if held else (type(value), id(value))


@functools.lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for each in kind.__mro__ for name in vars(each).get("__slots__", ()))


@functools.lru_cache(maxsize=1024)
def _read_by(function: types.FunctionType) -> tuple[Callable[[], Any], ...]:
    """Say how to get at what a function reads that is not its own.

    That is what it closes over, plain globals, and both for the functions beside it.
    """
    found: list[Callable[[], Any]] = []
    met, near = {function}, [function]
    while near:
        own = near.pop()
        for get in _beside(own):
            found.append(get)
            value = get()
            known = type(value) is types.FunctionType and value.__module__ == own.__module__
            if known and value not in met:
                met.add(value)
                near.append(value)
    return tuple(found)


def _beside(function: types.FunctionType) -> Iterator[Callable[[], Any]]:
    for cell in function.__closure__ or ():
        yield functools.partial(getattr, cell, "cell_contents", None)
    for name in function.__code__.co_names:
        known = function.__globals__.get(name)
        alike = type(known) is types.FunctionType and known.__module__ == function.__module__
        if alike or (known is not None and is_plain(known)) or type(known) in SPACES:
            yield functools.partial(function.__globals__.get, name)


def contents(value: object, depth: int = DEEPEST) -> Iterator[int]:
    """Say what objects hang on what a module holds: another one in their place is another state.

    Args:
        value: What it holds.
        depth: How many containers deep to look.
    """
    yield id(value)
    if isinstance(value, np.ndarray):
        yield hash(value.tobytes())
    if not depth or isinstance(value, LIVE) or is_plain(value):
        return
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, SEQUENCES):
        inner = value
    elif type(value).__module__.partition(".")[0] not in ("torch", "builtins"):
        inner = list(getattr(value, "__dict__", {}).values())
    for each in inner:
        yield from contents(each, depth - 1)
