"""Look closely at the blamed operations in a second replay: extremes, rows, line of code."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradwatch.non_finite.blame import Fault
from gradwatch.non_finite.capture import named_tensors
from gradwatch.non_finite.evidence import Seen, empty_rows, numbers_in, tallies
from gradwatch.non_finite.flags import Value, dense_parts, worst
from gradwatch.non_finite.mode import Watch
from gradwatch.non_finite.operations import read_arguments, signature, written_tensors
from gradwatch.non_finite.surroundings import Surroundings
from gradwatch.undo import Undo

# Whose lines are nobody's fault: this package's own, and those of installed frameworks.
OWN = str(Path(__file__).parents[1])
STANDARD = sysconfig.get_path("stdlib")
INSTALLED = re.compile(
    r"(site|dist)-packages/(?!torch/|lightning/|pytorch_lightning/|lightning_fabric/)"
)
TORCH = str(Path(torch.__file__).parent)


@dataclass(kw_only=True)
class Sight:
    """What a close look at one operation showed.

    Attributes:
        name: Name of the operation that ran at that place.
        value: The worst value it gave.
        dtype: Type of its result, such as ``"float16"``.
        shape: Shape of its result.
        nan_count: NaN in the result.
        inf_count: Infinities in the result.
        max_input: Largest finite magnitude that went in; NaN where there was none.
        rows: Indices of the bad rows of the result.
        size: Number of rows of the result.
    """

    name: str = ""
    value: Value = Value.FINITE
    dtype: str = ""
    shape: tuple[int, ...] = ()
    nan_count: int = 0
    inf_count: int = 0
    max_input: float = float("nan")
    rows: tuple[int, ...] = ()
    size: int = 0


class Probe(Watch):
    """Count operations as the trace did and look at a few of them.

    Args:
        fault: What is to blame: its operation is looked at, its source gives the line of
            code, and in the forward pass the outputs of the calls around it are looked at.
        around: The neighbours that are looked at too.

    Attributes:
        sight: What the blamed operation showed.
        seen: What the operations looked at read and gave, by index.
        line: The user's line, empty where none is on the stack.
        outputs: What the calls around it gave, innermost first.
    """

    def __init__(self, fault: Fault, around: Surroundings) -> None:
        """Start to count."""
        super().__init__()
        self._fault, self._index, self._looking = fault, 0, False
        self._wanted = {fault.operation.index, fault.source, around.scaling}
        self._wanted |= {*around.makers, *around.twins}
        self.sight = Sight()
        self.seen: dict[int, Seen] = {}
        self.line = ""
        self.outputs: list[Sight] = []

    def attach(self) -> Undo:
        """Hook the calls around a fault of the forward pass."""
        undo = Undo()
        chain = () if self._fault.backward else self._fault.operation.call.chain()
        for call in chain:
            if call.module is not None:
                undo.add(self._watch(call.module, call.number))
        return undo

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation; look at it if it is one of those."""
        if self._looking:
            return func(*args, **kwargs)
        index, self._index = self._index, self._index + 1
        if index == self._fault.source:
            self.line = users_line()
        if index not in self._wanted:
            return func(*args, **kwargs)
        sign = signature(func)
        arguments = list(read_arguments(sign, args, kwargs))
        # An operation in place overwrites what it read: count before it runs.
        inputs, empty = tallies(arguments), empty_rows(sign.name, arguments)
        output = func(*args, **kwargs)
        written = list(written_tensors(sign, args, kwargs, output))
        seen = Seen(
            name=sign.name,
            inputs=inputs,
            outputs=tallies(written),
            numbers=numbers_in(arguments),
            empty_rows=empty,
        )
        self.seen[index] = seen
        if index == self._fault.operation.index:
            self.sight = look(written)
            self.sight.name, self.sight.max_input = sign.name, seen.max_input
        return output

    def confirms(self, fault: Fault) -> bool:
        """Say whether the second replay did the same at the same place."""
        bad = fault.leaf is not None or self.sight.value is not Value.FINITE
        return bad and self.sight.name == fault.operation.name

    def _watch(self, module: nn.Module, number: int) -> Callable[[], object]:
        seen = 0

        def leave(_module: nn.Module, _args: object, output: object) -> None:
            nonlocal seen
            if seen == number:
                # What the look itself computes must not be counted.
                self._looking = True
                self.outputs.append(look(tensor for _, tensor in named_tensors(output, "")))
                self._looking = False
            seen += 1

        return module.register_forward_hook(leave).remove


def users_line() -> str:
    """Give the innermost line on the stack that is neither torch's nor Lightning's."""
    for frame in reversed(traceback.extract_stack()):
        if _is_users(Path(frame.filename).as_posix()):
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return ""


def _is_users(path: str) -> bool:
    if path.startswith((OWN, TORCH, "<")):
        return False
    if INSTALLED.search(path):
        return True
    return "-packages/" not in path and not path.startswith(STANDARD)


def look(tensors: Iterable[Tensor]) -> Sight:
    """Describe the worst of several tensors; waits for the device."""
    sight = Sight()
    floating = [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
    values = [worst(tensor) for tensor in floating]
    if not values:
        return sight
    sight.value = max(values)
    tensor = floating[values.index(sight.value)]
    sight.dtype, sight.shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    for part in dense_parts(tensor):
        sight.nan_count += int(part.isnan().sum())
        sight.inf_count += int(part.isinf().sum())
    if tensor.dim() and tensor.numel() and tensor.layout is torch.strided:
        bad = ~torch.isfinite(next(dense_parts(tensor), tensor))
        sight.size = bad.shape[0]
        sight.rows = tuple(bad.reshape(sight.size, -1).any(1).nonzero().flatten().tolist())
    return sight
