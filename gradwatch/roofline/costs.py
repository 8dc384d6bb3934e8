"""What each layer costs: operations, bytes and kernels of one step, forward and backward.

Counted by watching one real step; nothing is computed twice and nothing is changed.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from gradwatch.findings import LOSS
from gradwatch.flops import matrix_flops, simple_flops
from gradwatch.roofline import operations
from gradwatch.roofline.regions import Piece, Region, Storages
from gradwatch.roofline.spans import NO_NUMBER, Span, Spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

log = logging.getLogger("gradwatch")

_OF_OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd

Phase = Literal["forward", "backward"]


@dataclass(kw_only=True)
class PhaseCost:
    """Cost of one phase of a layer, summed over its calls.

    Attributes:
        matrix_flops: dtype → operations in matrix products, convolutions and attention.
        simple_flops: One per element of every other operation that computes.
        moved_bytes: Bytes that must move: what enters and leaves each call, once.
        traffic_bytes: Bytes that its operations move one by one, temporaries included.
        kernels: Operations that launch something.
    """

    matrix_flops: dict[str, float] = field(default_factory=dict)
    simple_flops: float = 0.0
    moved_bytes: float = 0.0
    traffic_bytes: float = 0.0
    kernels: int = 0

    @property
    def flops(self) -> float:
        """All floating-point operations."""
        return sum(self.matrix_flops.values()) + self.simple_flops


@dataclass(kw_only=True)
class LayerCost:
    """Cost of a layer's own work, without its children's.

    Attributes:
        forward: Its forward.
        backward: Its backward; a recomputed forward belongs to it.
        saved_bytes: What it alone keeps for the backward; see `gradwatch.memory.saved`.
    """

    forward: PhaseCost = field(default_factory=PhaseCost)
    backward: PhaseCost = field(default_factory=PhaseCost)
    saved_bytes: float = 0.0

    def of(self, phase: Phase) -> PhaseCost:
        """Give one phase."""
        return self.forward if phase == "forward" else self.backward


class Pair(NamedTuple):
    """An operation and the one that follows it and reads its output at once."""

    phase: Phase
    name: str
    follower: str


class _Place(NamedTuple):
    phase: Phase
    span: Span


class CostCounter(TorchDispatchMode):
    """Count what every operation costs and which layer it belongs to.

    Args:
        spans: Knows which module is running; attached already.

    Attributes:
        layers: Layer → cost, in order of first use.
        counts: (phase, name) → launches.
        pairs: How often an operation's output was read by the very next one.
        error: What went wrong, if counting had to stop.
        paused: True while what runs is no part of the step.
    """

    def __init__(self, spans: Spans) -> None:
        """Start with nothing counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers: dict[str, LayerCost] = {}
        self.counts: Counter[tuple[Phase, str]] = Counter()
        self.pairs: Counter[Pair] = Counter()
        self.error: Exception | None = None
        self.paused = False
        self._spans, self._storages = spans, Storages()
        self._region = Region(self._storages)
        self._place = _Place("forward", Span(LOSS, 0))
        self._last: tuple[str, frozenset[int]] = ("", frozenset())

    # Operators over functions (flex attention) are refused to a mode that does not say this.
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Where nothing is compiled, the import of the compiler would be the largest cost of all.
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - also operators over functions
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operation returns
        """Run an operation unchanged and count it."""
        known = kwargs or {}
        if isinstance(func, OpOverload) and _is_whole(func, args):
            with self:
                return func._op_dk(_OF_OTHERS, *args, **known)
        out = func(*args, **known)
        if self.error is None and not self.paused and isinstance(func, OpOverload):
            try:
                self._count(func, args, known, out)
            except Exception as error:
                log.debug("an operation could not be counted: %s", func, exc_info=True)
                self.error = error
        return out

    def finish(self) -> None:
        """Close the last region; to be called once the step is over."""
        self._move(_Place("forward", Span(LOSS, -1)))

    def _count(
        self,
        func: OpOverload[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        out: object,
    ) -> None:
        self._move(self._find_place())
        changed = _changed(func, args, kwargs)
        ins = operations.tensors_of((args, kwargs))
        touched = {id(tensor) for tensor in changed}
        outs = [own for own in operations.tensors_of(out) if id(own) not in touched]
        made = self._pieces(outs)
        if not operations.launches(func):
            known = {piece.storage for piece in self._pieces(ins)}
            self._region.add((), (), [piece for piece in made if piece.storage not in known])
            return
        name = operations.short_name(func)
        reads, changes = self._reads(name, ins, changed, made), self._pieces(changed)
        self._region.add(reads, changes, made)
        cost = self._cost()
        cost.kernels += 1
        cost.traffic_bytes += sum(piece.num_bytes for piece in (*reads, *changes, *made))
        matrix = matrix_flops(func, args, kwargs, out)
        if matrix:
            dtype = str(ins[0].dtype).removeprefix("torch.")
            cost.matrix_flops[dtype] = cost.matrix_flops.get(dtype, 0.0) + matrix
        else:
            cost.simple_flops += simple_flops(name, (own.numel() for own in (*ins, *outs)))
        self._follow(name, reads, (*changes, *made))

    def _cost(self) -> PhaseCost:
        layer = self.layers.setdefault(self._place.span.layer, LayerCost())
        return layer.of(self._place.phase)

    def _find_place(self) -> _Place:
        node = torch._C._current_autograd_node()
        phase: Phase = "backward" if node is not None else "forward"
        running = self._spans.running()
        if running is not None:
            return _Place(phase, running)
        if node is None:
            return _Place(phase, Span(LOSS, 0))
        number = node._sequence_nr()
        # Accumulation into a leaf runs right behind the node that made the gradient.
        return self._place if number == NO_NUMBER else _Place(phase, self._spans.find(number))

    def _move(self, place: _Place) -> None:
        if place == self._place:
            return
        moved = self._region.moved_bytes()
        if moved:
            self._cost().moved_bytes += moved
        self._region, self._place = Region(self._storages), place

    def _pieces(self, tensors: Sequence[Tensor]) -> list[Piece]:
        pieces = (self._storages.piece(tensor) for tensor in tensors)
        return [piece for piece in pieces if piece is not None]

    def _reads(
        self, name: str, ins: Sequence[Tensor], changed: Sequence[Tensor], made: Sequence[Piece]
    ) -> list[Piece]:
        skip = {id(tensor) for tensor in changed} if name in operations.OVERWRITES else set()
        reads = self._pieces([tensor for tensor in ins if id(tensor) not in skip])
        if name in operations.GATHERS and reads:
            most = sum(piece.num_bytes for piece in made)
            reads[0] = reads[0]._replace(num_bytes=min(reads[0].num_bytes, most))
        return list(dict.fromkeys(reads))

    def _follow(self, name: str, reads: Sequence[Piece], writes: Sequence[Piece]) -> None:
        phase = self._place.phase
        before, written = self._last
        if written & {piece.storage for piece in reads}:
            self.pairs[Pair(phase, before, name)] += 1
        self.counts[phase, name] += 1
        self._last = name, frozenset(piece.storage for piece in writes)


def _is_whole(func: OpOverload[..., Any], args: Sequence[Any]) -> bool:
    """Tell whether an operation made of others comes as one: so it does in inference mode."""
    ins = [each for each in args if isinstance(each, torch.Tensor)]
    plain = all(type(each) in {torch.Tensor, nn.Parameter} for each in ins)
    if not ins or not plain:
        return False
    inference = torch.is_inference_mode_enabled() or any(each.is_inference() for each in ins)
    return inference and _is_of_others(func, ins[0].device.type)


@lru_cache(maxsize=4096)
def _is_of_others(func: OpOverload[..., Any], device: str) -> bool:
    """Tell whether an operation runs others that count, and has no kernel of its own."""
    own = torch._C._dispatch_key_for_device(device)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(func.name(), _OF_OTHERS) and not has(func.name(), own)


def _changed(
    func: OpOverload[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Tensor]:
    """Give the tensors that an operation writes into, by its schema."""
    changed: list[object] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            changed.append(given)
    return operations.tensors_of(changed)
