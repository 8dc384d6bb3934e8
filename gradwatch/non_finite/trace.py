"""Record every operation of a replay: where it stands, what it read, what it wrote."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import _get_sequence_nr

from gradwatch.non_finite.calls import Call, CallStack
from gradwatch.non_finite.flags import Flags, Value
from gradwatch.non_finite.memory import Memory, Use
from gradwatch.non_finite.mode import Watch
from gradwatch.non_finite.operations import (
    Signature,
    literal,
    read_arguments,
    signature,
    unread_tensors,
    written_tensors,
)
from gradwatch.undo import Undo


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that computed something.

    Attributes:
        index: Its place in the order of execution, views counted too.
        name: Name such as ``"aten::sqrt"``.
        call: The module call it stands in; of a backward: where its forward stood.
        node: Name of the autograd node that ran it, empty in the forward pass.
        origin: Index of the forward operation whose backward it is, -1 if none or unknown.
        reads: What it read, before the call.
        writes: What it wrote, after the call.
        literal: The worst number written into the code as an argument.
    """

    index: int
    name: str
    call: Call
    node: str
    origin: int
    reads: list[Use]
    writes: list[Use]
    literal: Value


class Trace(Watch):
    """Watch everything PyTorch dispatches between entering and leaving.

    Args:
        model: The model whose modules the operations belong to.

    Attributes:
        stack: Calls of the model's modules.
        memory: Who wrote what.
        flags: Finite or not; on the devices until read.
        operations: The operations that computed something, by index.
        names: Name of every operation, views included, by index.
    """

    def __init__(self, model: nn.Module) -> None:
        """Start with an empty record."""
        super().__init__()
        self.stack = CallStack(model)
        self.flags = Flags()
        self.memory = Memory(self.flags)
        self.operations: dict[int, Operation] = {}
        self.names: list[str] = []
        self.calls: list[Call] = []
        self._nodes: dict[tuple[int, int], int] = {}
        self._claimed: dict[int, int] = {}
        self._home = threading.get_ident()

    def attach(self) -> Undo:
        """Hook the modules."""
        return self.stack.attach()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation and note what went in and came out."""
        sign = signature(func)
        index = len(self.names)
        call, node, origin = self._locate(index)
        self.names.append(sign.name)
        self.calls.append(call)
        self.stack.clock = index + 1
        if sign.view:
            return func(*args, **kwargs)
        reads, number = self._reads(sign, args, kwargs)
        output = func(*args, **kwargs)
        writes = [
            use
            for tensor in written_tensors(sign, args, kwargs, output)
            for use in self.memory.writes(tensor, index, blank=sign.blank)
        ]
        self.operations[index] = Operation(
            index, sign.name, call, node, origin, reads, writes, number
        )
        if not node:
            call.operations.append(index)
        return output

    def _reads(
        self, sign: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[Use], Value]:
        for tensor in unread_tensors(sign, args, kwargs):
            self.memory.know(tensor)
        reads: list[Use] = []
        worst = Value.FINITE
        for argument in read_arguments(sign, args, kwargs):
            if isinstance(argument, Tensor):
                reads += self.memory.reads(argument)
            else:
                worst = max(worst, literal(argument))
        return reads, worst

    def _locate(self, index: int) -> tuple[Call, str, int]:
        """Say where an operation stands; in a backward, where its forward stood."""
        self._claim_nodes(index)
        call = self.stack.top
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001 - no public way to ask
        # A checkpoint's second run has a node too, but stands in a call begun under it.
        if node is None or call.graph == torch._C._current_graph_task_id():  # noqa: SLF001
            return call, "", -1
        origin = self._origin(node)
        stands = self.calls[origin] if origin >= 0 else self.stack.outermost
        return stands, str(node.name()), origin

    def _claim_nodes(self, index: int) -> None:
        """Note that the nodes made since the last operation are this operation's.

        They exist before it is dispatched: one as a rule, one a level under torch.func.
        """
        thread, following = threading.get_ident(), _get_sequence_nr()
        for number in range(self._claimed.get(thread, following - 1), following):
            self._nodes[thread, number] = index
        self._claimed[thread] = following

    def _origin(self, node: Any) -> int:  # noqa: ANN401 - an autograd node has no public type
        number = node._sequence_nr()  # noqa: SLF001 - no public way to ask
        # The counter is per thread: what a checkpoint runs again may lie on another one.
        found = [
            self._nodes[thread, number]
            for thread in dict.fromkeys((self._home, threading.get_ident()))
            if (thread, number) in self._nodes
        ]
        alike = [index for index in found if _same(self.names[index], node.name())]
        return next(iter(alike + found), -1)


def _same(operation: str, node: str) -> bool:
    plain = operation.rpartition("::")[2].replace("_", "")
    return node.partition("Backward")[0].lower() == plain
