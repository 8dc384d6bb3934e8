"""Does a fused function agree with the stock one? Outputs, every gradient, buffers; live inputs.

The measure is the stock function's own error against float64: a candidate may err twice as much.
Each is run on copies of the modules, so that nothing of the model is touched; gradients come as
they came in training, and laid out in memory in ways a kernel may not expect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradwatch.fused.operation import Call, Function, Operation
from gradwatch.fused.runs import LAYOUTS, Layout, Run, Spoiled, run_function
from gradwatch.words import one_line

__all__ = ["Parity", "check"]

# Of a few numbers the stock function may hit every bit by luck, of many it may not: what is
# allowed beside twice its error falls from one rounding to a sixteenth of one.
MANY, FEW = 16, 4
# A float64 twin that is further off than this is not the same function.
FARTHEST = 0.1


class Parity(NamedTuple):
    """How a candidate compares with the stock function on live data.

    Attributes:
        error: Its largest relative error against float64, over outputs, gradients and buffers.
        stock_error: That of the stock function, in the same place.
        reason: Why it is rejected; empty where it agrees.
    """

    error: float
    stock_error: float
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Whether it may take the stock function's place."""
        return not self.reason


class _Rejected(Exception):  # noqa: N818 - a verdict, not an error
    """A candidate does not agree."""


def check(operation: Operation, owner: nn.Module, call: Call, limit_seconds: float) -> Parity:
    """Compare an operation's fused function with its stock one on a live call.

    Args:
        operation: The two functions.
        owner: Module its members are found below.
        call: The call.
        limit_seconds: How long the first call of the fused function may take.

    Returns:
        Errors, or the reason to reject it.
    """
    members = [owner.get_submodule(path) for path in operation.members]

    def fused(layout: Layout, limit: float | None = None) -> Run:
        return run_function(operation.fused, members, call, layout=layout, limit_seconds=limit)

    try:
        stock, exact = _references(operation.stock, members, call)
        worst = _compare(fused(LAYOUTS[0], limit_seconds), stock, exact, LAYOUTS[0])
        for layout in LAYOUTS[1:]:
            if layout.own_reference:
                stock, exact = _references(operation.stock, members, call, layout)
            worst = max(worst, _compare(fused(layout), stock, exact, layout))
    except _Rejected as rejected:
        return Parity(math.nan, math.nan, str(rejected))
    except Spoiled as spoiled:
        return Parity(math.nan, math.nan, str(spoiled))
    except Exception as error:  # noqa: BLE001 - whatever a provider's function raises
        return Parity(math.nan, math.nan, f"it raised {one_line(error)}")
    return Parity(*worst)


def _references(
    stock: Function, members: list[nn.Module], call: Call, layout: Layout = LAYOUTS[0]
) -> tuple[Run, Run]:
    plain = run_function(stock, members, call, layout=layout)
    if plain.drew:
        raise _Rejected("it draws random numbers: two forms of it cannot be compared")
    return plain, run_function(stock, members, call, layout=layout, double=True)


def _compare(fused: Run, stock: Run, exact: Run, layout: Layout) -> tuple[float, float]:
    """Give the largest error and the stock function's there; raise where it is too large."""
    if fused.drew:
        raise _Rejected("it draws random numbers, which the stock function does not")
    _same_inputs_written(fused, stock)
    for name, value in fused.values.items():
        if name in stock.values:
            _same_kind(name, value, stock.values[name])
    _same_names(fused.values, stock.values)
    worst = (0.0, 0.0)
    for name, value in fused.values.items():
        if value.is_floating_point():
            worst = max(worst, _floating_error(name, fused, stock, exact, layout))
        elif not torch.equal(value, stock.values[name]):
            raise _Rejected(f"its {name} is not the stock one")
    return worst


def _same_inputs_written(fused: Run, stock: Run) -> None:
    for name in sorted(fused.wrote - stock.wrote):
        raise _Rejected(f"it writes into its {name}")
    for name in sorted(stock.wrote - fused.wrote):
        raise _Rejected(f"it leaves its {name} as it is, where the stock layer works in place")


def _same_names(fused: Mapping[str, Tensor], stock: Mapping[str, Tensor]) -> None:
    missing, added = stock.keys() - fused.keys(), fused.keys() - stock.keys()
    if missing:
        raise _Rejected(f"it gives no {min(missing)}")
    if added:
        raise _Rejected(f"it gives a {min(added)}, which the stock function does not")


def _same_kind(name: str, value: Tensor, stock: Tensor) -> None:
    for what in ("dtype", "shape", "device"):
        got, wanted = getattr(value, what), getattr(stock, what)
        if got != wanted:
            raise _Rejected(f"its {name} has {what} {_plain(got)}, the stock one {_plain(wanted)}")


def _floating_error(
    name: str, fused: Run, stock_run: Run, exact_run: Run, layout: Layout
) -> tuple[float, float]:
    value, stock, exact = (each.values[name] for each in (fused, stock_run, exact_run))
    own, others = _relative(value, exact), _relative(stock, exact)
    eps = torch.finfo(value.dtype).eps
    # Under autocast a float32 gradient may have come through products of bfloat16 numbers.
    coarsest = max(eps, stock_run.rounding)
    if not math.isfinite(others) or others > min(2 * coarsest**0.5, FARTHEST):
        if layout.own_reference and bool(value.isfinite().all()):
            return 0.0, 0.0
        raise _Rejected(
            f"the stock {name} is {others:.1e} off its own float64 twin: there is no measure"
        )
    allowed = 2 * others + eps / min(max(value.numel() ** 0.5 / FEW, 1), MANY)
    if not own <= allowed:
        raise _Rejected(f"its {name}{layout.told} is {own:.1e} off, the stock one {others:.1e}")
    peak, peaks = _peak(value, exact), _peak(stock, exact)
    if not peak <= 4 * peaks + eps:
        raise _Rejected(
            f"its {name}{layout.told} is {peak:.1e} off at the worst element, "
            f"the stock one {peaks:.1e}"
        )
    return own, others


def _plain(value: object) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)


def _relative(value: Tensor, exact: Tensor) -> float:
    if value.numel() == 0:
        return 0.0
    return float((value.double() - exact).norm() / exact.norm().clamp_min(1e-300))


def _peak(value: Tensor, exact: Tensor) -> float:
    if value.numel() == 0:
        return 0.0
    return float((value.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-300))
