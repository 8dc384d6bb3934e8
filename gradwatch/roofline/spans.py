"""Which module is running, and which module an autograd node comes from.

Autograd numbers its nodes in the order they are made, per thread. Hooks on every module note
the number at each entry and exit; a node's number then names the module that made it, in the
profiler's trace as well as during the backward itself.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.profiler import record_function

from gradwatch.findings import LOSS
from gradwatch.hooks import Hook, unreachable
from gradwatch.layers import clean_name, unwrap
from gradwatch.undo import Undo

MARK = "gradwatch:"
# What the engine gives every node that accumulates into a leaf.
NO_NUMBER = 2**64 - 1


class Span(NamedTuple):
    """A stretch of the forward that belongs to one module, between two hooks.

    Attributes:
        layer: Name of the module; ``<loss>`` outside of all.
        number: Different for each stretch.
    """

    layer: str
    number: int


class _Thread:
    """Modules that are running on one thread, and the numbers they began at."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.stack: list[tuple[str, record_function | None]] = []
        self.starts: list[int] = [-1]
        self.spans: list[Span] = [Span(LOSS, 0)]


class Spans:
    """Follow the modules of a model through forward and backward.

    Args:
        model: The model, unwrapped.
        mark: Whether each call is also written into a running profiler's trace.
        nvtx: Whether each call is also an NVTX range; nothing without a CUDA device.
    """

    def __init__(self, model: nn.Module, *, mark: bool = False, nvtx: bool = False) -> None:
        """Remember the model; nothing is attached yet."""
        self._model, self._mark = model, mark
        self._nvtx = nvtx and torch.cuda.is_available()
        self._threads: dict[int, _Thread] = {}
        self._count = 0
        self.blocked: dict[str, str] = {}

    def attach(self) -> Undo:
        """Set the hooks on every module that can bear one.

        Returns:
            The undo that removes them.
        """
        undo, blocked = Undo(), unreachable(self._model)
        for raw, module in self._model.named_modules():
            name = clean_name(raw)
            if module in blocked:
                self.blocked[name] = blocked[module]
                continue
            enter, leave = Hook(partial(self._enter, name)), Hook(self._leave)
            undo.add(module.register_forward_pre_hook(enter).remove)
            undo.add(module.register_forward_hook(leave, always_call=True).remove)
        return undo

    def running(self) -> Span | None:
        """Give the module that runs on this thread; None where none does."""
        own = self._own()
        return own.spans[-1] if own.stack else None

    def find(self, number: int, thread: int | None = None) -> Span:
        """Give the module that made an autograd node.

        Args:
            number: The node's sequence number.
            thread: Number of the thread that made it, as it stands in the trace; None where
                unknown: then this thread's own nodes come first (a checkpoint recomputes on
                the thread that runs the backward), the first thread's after.
        """
        own = self._own().number if thread is None else thread
        for each in sorted(self._threads.values(), key=lambda each: each.number != own):
            at = bisect_right(each.starts, number) - 1
            if at > 0:
                return each.spans[at]
        return Span(LOSS, 0)

    def _own(self) -> _Thread:
        ident = threading.get_ident()
        if ident not in self._threads:
            self._threads[ident] = _Thread(len(self._threads))
        return self._threads[ident]

    def _enter(self, name: str, *_: object) -> None:
        own, mark = self._own(), None
        if self._mark:
            mark = record_function(f"{MARK}{own.number}:{name}")
            mark.__enter__()
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)
        own.stack.append((name, mark))
        self._note(own)

    def _leave(self, *_: object) -> None:
        own = self._own()
        if not own.stack:
            return
        mark = own.stack.pop()[1]
        self._note(own)
        if self._nvtx:
            torch.cuda.nvtx.range_pop()
        if mark is not None:
            mark.__exit__(None, None, None)

    def _note(self, own: _Thread) -> None:
        self._count += 1
        layer = own.stack[-1][0] if own.stack else LOSS
        own.starts.append(torch._C._autograd._get_sequence_nr())
        own.spans.append(Span(layer, self._count))


def mark_layers(model: nn.Module) -> Undo:
    """Put a range around each module's forward, for a profiler of your own.

    torch's profiler sees them as ``gradwatch:<thread>:<layer>``, the vendor's tools as NVTX
    ranges named like the layer. The backward's are `torch.autograd.profiler.emit_nvtx`'s.

    Args:
        model: The model.

    Returns:
        The undo that takes them off.

    Examples:
        >>> undo = mark_layers(nn.Linear(2, 2))
        >>> undo()
    """
    return Spans(unwrap(model), mark=True, nvtx=True).attach()
