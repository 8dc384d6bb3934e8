"""What the dispatcher says about an operation: which arguments it reads, what it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isinf, isnan
from typing import Any

from torch import Tensor
from torch._ops import OpOverload

from gradwatch.non_finite.flags import Value

# These give memory nobody has written to yet: what lies in it means nothing.
BLANK = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
        "resize_",
    )
)  # fmt: skip
# These overwrite their first argument without reading it.
OVERWRITING = frozenset(
    f"aten::{name}_"
    for name in (
        "copy", "fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential",
        "log_normal", "geometric", "cauchy",
    )
)  # fmt: skip
# A batch norm that trains does not look at the running statistics it keeps, which the failing
# forward pass may have ruined: where its flag stands, and where the statistics do.
TRAINING_FLAG = {
    "aten::native_batch_norm": 5,
    "aten::_native_batch_norm_legit": 5,
    "aten::cudnn_batch_norm": 5,
    "aten::miopen_batch_norm": 5,
    "aten::native_batch_norm_backward": 7,
}
STATISTICS = frozenset({3, 4})
# A view in all but its schema.
UNDECLARED_VIEWS = frozenset({"aten::_unsafe_view"})


@dataclass(frozen=True, kw_only=True)
class Signature:
    """How an operation treats its arguments.

    Attributes:
        name: Name without overload, such as ``"aten::sqrt"``.
        view: It returns another look at an argument and computes nothing.
        blank: It returns memory that nobody has written to.
        unread: Positions of the arguments it overwrites unread.
        out: Names of keyword arguments it writes to.
        written: Positions of the arguments it changes in place.
    """

    name: str
    view: bool = False
    blank: bool = False
    unread: frozenset[int] = frozenset()
    out: frozenset[str] = frozenset()
    written: tuple[int, ...] = ()


@lru_cache(maxsize=4096)
def signature(function: Any) -> Signature:  # noqa: ANN401 - higher-order operators are no OpOverload
    """Read an operation's schema, once.

    Args:
        function: What the dispatcher hands to a dispatch mode.

    Returns:
        Its signature; operators without a schema count as functions of all arguments.
    """
    if not isinstance(function, OpOverload):
        return Signature(name=str(function))
    schema = function._schema  # noqa: SLF001 - alias annotations have no public reader
    name = str(schema.name)
    changed = [
        (place, argument)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return Signature(
        name=name,
        view=name in UNDECLARED_VIEWS or (not changed and _all_alias(schema.returns)),
        blank=name in BLANK,
        unread=frozenset({0}) if name in OVERWRITING else frozenset(),
        out=frozenset(argument.name for _, argument in changed if argument.kwarg_only),
        written=tuple(place for place, argument in changed if not argument.kwarg_only),
    )


def read_arguments(
    sign: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[object]:
    """Walk what an operation reads: tensors, numbers and the rest, lists flattened."""
    flag = TRAINING_FLAG.get(sign.name, len(args))
    trains = flag < len(args) and args[flag]
    unread = sign.unread | STATISTICS if trains else sign.unread
    for place, argument in enumerate(args):
        if place not in unread:
            yield from _flat(argument)
    for name, argument in kwargs.items():
        if name not in sign.out:
            yield from _flat(argument)


def unread_tensors(
    sign: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[Tensor]:
    """Walk what an operation overwrites without reading it."""
    unread = [args[place] for place in sign.unread if place < len(args)]
    unread += [kwargs[name] for name in sign.out if name in kwargs]
    yield from (leaf for leaf in _flat(unread) if isinstance(leaf, Tensor))


def written_tensors(
    sign: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], output: object
) -> Iterator[Tensor]:
    """Walk what an operation returned or changed in place."""
    changed = [args[place] for place in sign.written if place < len(args)]
    changed += [kwargs[name] for name in sign.out if name in kwargs]
    for leaf in _flat([output, *changed]):
        if isinstance(leaf, Tensor):
            yield leaf


def literal(value: object) -> Value:
    """Say whether a number written into the code is NaN or infinite."""
    if not isinstance(value, float) or not (isinf(value) or isnan(value)):
        return Value.FINITE
    if isnan(value):
        return Value.NAN
    return Value.INF if value > 0 else Value.MINUS_INF


def _all_alias(returns: Sequence[Any]) -> bool:
    return bool(returns) and all(value.alias_info is not None for value in returns)


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _flat(inner)
    else:
        yield value
