"""The plain values in what a module holds: a trace has fixed them, so that they are compared."""

from __future__ import annotations

import enum
import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Unfixable", "changeable", "contents", "fixed", "is_plain"]

DEEPEST = 5
# A table of words is compared as a whole: it is filled once.
LONGEST = 64
MOST = 1024
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

    def of(self, value: Any, depth: int) -> object:  # noqa: ANN401, PLR0911 - a value of any kind
        if value is None or type(value) in (bool, int, float, str):
            return value
        self._left -= 1
        if not depth or not self._left:
            raise Unfixable
        if is_plain(value) or isinstance(value, NAMES):
            return value
        if isinstance(value, SEQUENCES):
            return self._sequence(value, depth)
        if isinstance(value, Mapping):
            if len(value) > LONGEST:
                return id(value), len(value)
            return tuple((name, self._inner(own, depth)) for name, own in value.items())
        if isinstance(value, np.ndarray | np.generic):
            return value.dtype, value.shape, value.tobytes()
        return self._callable(value, depth) if callable(value) else self._object(value, depth)

    def _inner(self, value: Any, depth: int) -> object:  # noqa: ANN401
        return type(value) if isinstance(value, LIVE) else self.of(value, depth - 1)

    def _sequence(self, value: Any, depth: int) -> object:  # noqa: ANN401
        if len(value) > LONGEST:
            return id(value), len(value)
        return tuple(
            id(each) if isinstance(each, LIVE) else self.of(each, depth - 1) for each in value
        )

    def _callable(self, value: Any, depth: int) -> object:  # noqa: ANN401
        if isinstance(value, functools.partial):
            held = (value.func, value.args, value.keywords)
            return tuple(self._inner(each, depth) for each in held)
        if isinstance(value, types.FunctionType):
            return value, tuple(self._inner(each, depth) for each in _surroundings(value))
        if isinstance(value, types.MethodType):
            return value.__func__, self._inner(value.__self__, depth)
        return value if isinstance(value, FUNCTIONS) else self._object(value, depth)

    def _object(self, value: Any, depth: int) -> object:  # noqa: ANN401
        if isinstance(value, LIVE):
            return type(value)
        slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
        held = {name: getattr(value, name, None) for name in slots} | getattr(value, "__dict__", {})
        if not held:
            return type(value), id(value)
        return tuple((name, self._inner(own, depth)) for name, own in held.items())


def _surroundings(function: types.FunctionType) -> Iterator[object]:
    """Give what a function reads that is not its own: what it closes over, plain globals."""
    for cell in function.__closure__ or ():
        try:
            inner = cell.cell_contents
        except ValueError:
            continue
        if inner is not function:
            yield inner
    for name in function.__code__.co_names:
        known = function.__globals__.get(name)
        if known is not None and (is_plain(known) or type(known) in SPACES):
            yield known


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
