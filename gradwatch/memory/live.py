"""Tensors that keep a graph alive: found by looking once at everything Python holds.

A walk over all objects takes a tenth of a second for a million of them, so it is taken before the
first step, twice in a run and where memory grows, never on a step of its own accord.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from gradwatch.graph.operations import operation_of
from gradwatch.layers import clean_name

if TYPE_CHECKING:
    from torch import nn

# What made a tensor, and its sizes.
Kind = tuple[str, tuple[int, ...]]
_LONGEST_WAY = 4
_MOST_ASKED = 9
_CONTAINERS = (list, dict, tuple, set)


class Held(NamedTuple):
    """Tensors of one kind that keep a graph alive.

    Attributes:
        operation: Operation that made them.
        shape: Their sizes.
        number: How many there are.
        retained: How many of them keep their gradient (``retain_grad``).
        nbytes: Their own bytes; what their graphs hold is not counted.
        holder: What holds one of them, as the user would write it; empty where unknown.
    """

    operation: str
    shape: tuple[int, ...]
    number: int
    retained: int
    nbytes: int
    holder: str = ""


class Older:
    """The tensors with a graph that are alive now, to be left out later; none is kept alive."""

    def __init__(self) -> None:
        """Look at them once."""
        self._known = {id(tensor): weakref.ref(tensor) for tensor in with_graph()}

    def __contains__(self, tensor: object) -> bool:
        """Tell whether a tensor is one of them: an address alone may be another's by now."""
        known = self._known.get(id(tensor))
        return known is not None and known() is tensor


def with_graph(older: Container[Tensor] = ()) -> list[Tensor]:
    """Give every tensor that Python holds and that has a graph behind it.

    Args:
        older: Those that are left out.
    """
    kinds = [Tensor, *_below(Tensor)]
    own = set(map(id, kinds))
    # An object refers to its type, and to ask for who does is one walk in C. By type and not
    # isinstance: a lazy proxy would be imported by being asked for its class.
    return [
        each
        for each in gc.get_referrers(*kinds)
        if id(type(each)) in own and _has_graph(each) and each not in older
    ]


def _below(kind: type) -> Iterator[type]:
    below: list[type] = kind.__subclasses__()
    for each in below:
        yield each
        yield from _below(each)


def _has_graph(tensor: Tensor) -> bool:
    try:
        # A compiler's stand-ins hold no memory, and their sizes are no numbers.
        return tensor.grad_fn is not None and all(type(size) is int for size in tensor.shape)
    except (ReferenceError, RuntimeError):
        return False


def census(older: Container[Tensor] = ()) -> dict[Kind, int]:
    """Count the tensors with a graph behind them by what made them and their sizes.

    Args:
        older: Those that are left out.

    Examples:
        >>> import torch
        >>> weight = torch.ones(3, requires_grad=True)
        >>> kept = [weight.exp() for _ in range(5)]
        >>> census()["exp", (3,)] >= 5
        True
    """
    return dict(Counter(_kind(tensor) for tensor in with_graph(older)))


def _kind(tensor: Tensor) -> Kind:
    return _operation(tensor), tuple(tensor.shape)


def _operation(tensor: Tensor) -> str:
    node: Any = tensor.grad_fn
    return operation_of(node.name())


def grown(
    before: dict[Kind, int],
    after: dict[Kind, int],
    steps: int,
) -> list[Kind]:
    """Name the kinds of tensors of which at least one more is alive with each second step.

    Args:
        before: An earlier census.
        after: A later one.
        steps: Optimizer steps between them.

    Returns:
        The kinds, the fastest growing first.
    """
    more = {kind: count - before.get(kind, 0) for kind, count in after.items()}
    kinds = [kind for kind, count in more.items() if 2 * count >= steps]
    return sorted(kinds, key=more.__getitem__, reverse=True)


def describe(kinds: Sequence[Kind], model: nn.Module, older: Container[Tensor] = ()) -> list[Held]:
    """Say of some kinds of tensors how many there are and what holds them.

    Args:
        kinds: Operation and sizes of each.
        model: The model, whose modules are named.
        older: Tensors that are left out.
    """
    alive: dict[Kind, list[Tensor]] = {kind: [] for kind in kinds}
    for tensor in with_graph(older):
        kind = _kind(tensor)
        if kind in alive:
            alive[kind].append(tensor)
    names = {id(vars(module)): clean_name(name) for name, module in model.named_modules()}
    held = [_held(*kind, tensors, names) for kind, tensors in alive.items() if tensors]
    alive.clear()
    # What nothing in Python refers to is held by a graph, and goes with those that are.
    return [each for each in held if each.holder] or held


def _held(
    operation: str, shape: tuple[int, ...], tensors: list[Tensor], names: dict[int, str]
) -> Held:
    retained = sum(tensor.retains_grad for tensor in tensors)
    size = sum(tensor.nbytes for tensor in tensors if not tensor.is_sparse)
    holder = _holder(_some(tensors), [tensors], names)
    return Held(operation, shape, len(tensors), retained, size, holder)


def _some(values: Sequence[Any]) -> list[Any]:
    """Give a few, evenly spread: to ask who holds one costs a walk over everything."""
    return list(values[:: -(-len(values) // _MOST_ASKED)])


def _holder(values: list[Any], ours: list[object], names: dict[int, str]) -> str:
    """Follow who refers to most of the values until it has a name in the user's code.

    The step at hand holds its own tensor in places of its own, so what holds one of several tells
    nothing as long as something holds more of them.
    """
    way, seen = "", Counter[str]()
    for _ in range(_LONGEST_WAY):
        ours.append(values)
        users = [each for each in gc.get_referrers(*values) if not _is_ours(each, ours)]
        ours.append(users)
        found = Counter(name for value in values for name in _named(value, users, names))
        seen.update({name + way: count for name, count in found.items()})
        if found and 2 * found.most_common(1)[0][1] > len(values):
            return found.most_common(1)[0][0] + way
        boxes, keys = {}, Counter[str]()
        for box, key in (each for value in values for each in _boxes(value, users)):
            boxes[id(box)], keys[key] = box, keys[key] + 1
        if not boxes:
            break
        way = keys.most_common(1)[0][0] + way
        values = _some(list(boxes.values()))
        # Nothing of this walk may be taken for a holder by its next step.
        boxes.clear()
    else:
        return next((name for name, _ in seen.most_common(1)), "")
    # The variables of a running function refer to nothing that can be asked.
    nameless = f"a {type(values[0]).__name__} in a local variable{way}" if way else ""
    return next((name for name, _ in seen.most_common(1)), nameless)


def _named(value: object, users: Sequence[object], names: dict[int, str]) -> list[str]:
    # A variable of a running function holds what the step at hand still needs: it comes last.
    lasting = sorted(users, key=lambda each: isinstance(each, FrameType))
    return list(dict.fromkeys(name for each in lasting for name in _names(each, value, names)))


def _boxes(value: object, users: Sequence[object]) -> Iterator[tuple[Any, str]]:
    """Give the containers that hold a value, and how it is taken out of each."""
    for each in users:
        if type(each) in _CONTAINERS and any(held is value for held in gc.get_referents(each)):
            yield each, f"[{_key(each, value)}]"


def _is_ours(value: object, ours: list[object]) -> bool:
    if isinstance(value, FrameType):
        return str(value.f_globals.get("__name__", "")).startswith("gradwatch.")
    return any(value is each for each in ours)


def _key(box: Any, value: object) -> str:  # noqa: ANN401 - a list, a tuple, a set or a dict
    if isinstance(box, dict):
        return next((repr(key) for key, held in box.items() if held is value), "…")
    return "…"


def _names(user: object, value: object, names: dict[int, str]) -> Iterator[str]:
    if isinstance(user, FrameType):
        own = [key for key, held in user.f_locals.items() if held is value]
        yield from (f"{key} in {user.f_code.co_name}()" for key in own[:1])
    elif isinstance(user, dict):
        yield from _names_in(user, value, names)
    elif not isinstance(user, _CONTAINERS) and hasattr(user, "__dict__"):
        own = [key for key, held in vars(user).items() if held is value]
        yield from (f"{names.get(id(vars(user)), type(user).__name__)}.{key}" for key in own[:1])


def _names_in(user: dict[Any, Any], value: object, names: dict[int, str]) -> Iterator[str]:
    own = [key for key, held in user.items() if held is value and isinstance(key, str)]
    if not own:
        return
    if id(user) in names:
        yield f"{names[id(user)]}.{own[0]}"
    elif "__name__" in user and "__builtins__" in user:
        yield f"{user['__name__']}.{own[0]}"
    else:
        owners = (
            each for each in gc.get_referrers(user) if getattr(each, "__dict__", None) is user
        )
        yield from (
            f"{type(each).__name__}.{own[0]}" for each in owners if not isinstance(each, ModuleType)
        )
