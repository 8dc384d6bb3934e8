"""What a forward is handed while it is written down, in the place of its values."""

from __future__ import annotations

import builtins
import dis
import operator
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx

__all__ = ["Typed", "types_answered"]

# What a proxy answers with the live value's own; a call of another type goes the stock way.
SPECIALISED = frozenset({"dtype", "device", "is_cuda", "ndim"})
ASSERTED = "what the forward asserts does not hold"
# These ask whether something is a proxy, and mean it.
ASKERS = ("torch.fx", "torch.nn.modules.module", "torch.nn.parameter", "gradwatch")


class Typed(fx.Proxy):
    """A proxy that knows its value's type, so that code which branches on it can be traced."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the value's
        """Give what is specialised as the value has it, and write down anything else."""
        if name in SPECIALISED:
            return getattr(self.node.meta["value"], name)
        if self.node.op == "placeholder":
            # An object may hold None, or a flag, of which a proxy knows nothing.
            self.tracer.asked[str(self.node.target), name] = None  # type: ignore[attr-defined]
        return super().__getattr__(name)

    def dim(self) -> int:
        """Give the number of dimensions, which is specialised."""
        dimensions: int = self.node.meta["value"].dim()
        return dimensions

    def __bool__(self) -> bool:
        """Say that what is asserted holds, and check it at each call; decide nothing else."""
        if self.node.meta["value"] is not True or not _asserts(sys._getframe(1)):  # noqa: SLF001
            return bool(self.tracer.to_bool(self))
        self.tracer.create_proxy("call_function", torch._assert, (self, ASSERTED), {})  # noqa: SLF001
        return True

    def __setitem__(self, place: Any, value: Any) -> None:  # noqa: ANN401 - as a tensor's
        """Write down that something was written."""
        self.tracer.create_proxy("call_function", operator.setitem, (self, place, value), {})

    def __iadd__(self, other: Any) -> Any:  # noqa: ANN401 - as a tensor's
        """Write down that a tensor is added to in place: others may hold it."""
        return self._in_place(operator.iadd, operator.add, other)

    def __isub__(self, other: Any) -> Any:  # noqa: ANN401 - as a tensor's
        """Write down that something is taken off a tensor in place."""
        return self._in_place(operator.isub, operator.sub, other)

    def __imul__(self, other: Any) -> Any:  # noqa: ANN401 - as a tensor's
        """Write down that a tensor is multiplied in place."""
        return self._in_place(operator.imul, operator.mul, other)

    def __itruediv__(self, other: Any) -> Any:  # noqa: ANN401 - as a tensor's
        """Write down that a tensor is divided in place."""
        return self._in_place(operator.itruediv, operator.truediv, other)

    def _in_place(self, written: Any, plain: Any, other: Any) -> Any:  # noqa: ANN401 - as above
        # A number, such as a length, is another one afterwards.
        call = written if isinstance(self.node.meta["value"], Tensor) else plain
        return self.tracer.create_proxy("call_function", call, (self, other), {})


def _asserts(frame: FrameType) -> bool:
    """Tell whether what a frame decides just now is an assertion."""
    code = list(dis.get_instructions(frame.f_code))
    (place,) = (number for number, each in enumerate(code) if each.offset == frame.f_lasti)
    names = {(each.opname, each.argrepr) for each in code[place + 1 : place + 3]}
    return any("ASSERTION" in name or own == "AssertionError" for name, own in names)


@contextmanager
def types_answered() -> Iterator[None]:
    """Let ``isinstance`` answer for a proxy as for its value, in this thread.

    A forward that asks whether something is a tensor would go another way than it goes in training.
    """
    own, thread = builtins.isinstance, threading.get_ident()

    def answer(value: Any, kinds: Any) -> bool:  # noqa: ANN401 - as the builtin
        if type(value) is not Typed or threading.get_ident() != thread:
            return own(value, kinds)
        asker = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - the caller's
        return own(value if asker.startswith(ASKERS) else value.node.meta["value"], kinds)

    builtins.isinstance = answer
    try:
        yield
    finally:
        builtins.isinstance = own
