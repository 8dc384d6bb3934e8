"""Which call of which module is running, told by hooks that are there for one replay only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import nn

from gradwatch.findings import ROOT
from gradwatch.layers import clean_name
from gradwatch.undo import Undo


class Call:
    """One call of a module; the outermost one stands for the code around all modules.

    Attributes:
        module: The module, None for the outermost.
        name: Its name as the user wrote it.
        parent: The call it stands in.
        graph: The backward pass that was running when it began, -1 for none.
        start: Number of operations before it.
        end: Number of operations before it returned; large while it runs.
        children: Calls inside it, in order.
        operations: Indices of the operations that stand directly in it.
        first: The call of the forward pass that this one computes again (checkpointing).
        number: Which call of its module it is, counted from 0.
    """

    __slots__ = (
        "children", "end", "first", "graph", "module", "name", "number",
        "operations", "parent", "start",
    )  # fmt: skip

    def __init__(
        self, module: nn.Module | None, name: str, parent: Call | None, graph: int, start: int
    ) -> None:
        """Begin a call."""
        self.module, self.name, self.parent = module, name, parent
        self.graph, self.start, self.end = graph, start, 1 << 62
        self.children: list[Call] = []
        self.operations: list[int] = []
        self.first: Call | None = None
        self.number = 0

    def chain(self) -> Iterator[Call]:
        """Walk outwards, this call first."""
        call: Call | None = self
        while call is not None:
            yield call
            call = call.parent

    def neighbours(self, index: int) -> tuple[Call | None, Call | None]:
        """Give the inner calls an operation stands after and before."""
        after = [child for child in self.children if child.end <= index]
        before = [child for child in self.children if child.start > index]
        return (after[-1] if after else None, before[0] if before else None)


class CallStack:
    """Follow the calls of a model's modules.

    Args:
        model: The model; every module it holds gets two hooks.
    """

    def __init__(self, model: nn.Module) -> None:
        """Start outside every module."""
        self.outermost = Call(None, ROOT, None, -1, 0)
        self.top = self.outermost
        self.clock = 0
        self._names = {module: clean_name(name) for name, module in model.named_modules()}
        self._calls: dict[nn.Module, list[Call]] = defaultdict(list)
        self._again: dict[nn.Module, int] = defaultdict(int)

    def attach(self) -> Undo:
        """Hook every module; the undo takes all hooks off."""
        undo = Undo()
        for module in self._names:
            # Scripted modules take no hooks: what runs in them belongs to the caller.
            with suppress(RuntimeError):
                undo.add(module.register_forward_pre_hook(self._enter, prepend=True).remove)
                # An early stop in a checkpoint's second run leaves by an exception.
                undo.add(module.register_forward_hook(self._leave, always_call=True).remove)
        return undo

    def count(self, call: Call) -> int:
        """How often the forward pass called the module of this call."""
        return len(self._calls[call.module]) if call.module is not None else 1

    def order(self) -> tuple[str, ...]:
        """Give the modules' names in the order of their first call."""
        first = [calls[0] for calls in self._calls.values() if calls]
        return tuple(call.name for call in sorted(first, key=lambda call: call.start))

    def _enter(self, module: nn.Module, _args: object) -> None:
        graph = torch._C._current_graph_task_id()  # noqa: SLF001 - no public way to ask
        call = Call(module, self._names[module], self.top, graph, self.clock)
        if graph < 0 or graph == self.top.graph:
            self._count(call)
        else:
            self._recompute(call)
        self.top.children.append(call)
        self.top = call

    def _leave(self, module: nn.Module, _args: object, _output: object) -> None:
        for call in self.top.chain():
            call.end = self.clock
            if call.module is module:
                self.top = call.parent or self.outermost
                return

    def _count(self, call: Call) -> None:
        origin = call.parent.first if call.parent else None
        if origin is not None:
            self._follow(call, [child for child in origin.children if child.module is call.module])
            return
        calls = self._calls[call.module] if call.module is not None else []
        call.number = len(calls)
        calls.append(call)

    def _follow(self, call: Call, twins: list[Call]) -> None:
        """Pair a call inside a second run with the same call of the first run."""
        siblings = call.parent.children if call.parent else []
        place = sum(sibling.module is call.module for sibling in siblings)
        if place < len(twins):
            call.first, call.number = twins[place], twins[place].number

    def _recompute(self, call: Call) -> None:
        """Pair a second run with its first: the backward meets the last call first."""
        if call.module is None:
            return
        calls = self._calls[call.module]
        self._again[call.module] += 1
        if len(calls) >= self._again[call.module]:
            call.first = calls[-self._again[call.module]]
            call.number = call.first.number
