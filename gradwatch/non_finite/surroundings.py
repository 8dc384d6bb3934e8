"""What stands around a fault in the record: who made its inputs, who took its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from gradwatch.non_finite.blame import Fault, Leaf
from gradwatch.non_finite.chain import chain_of
from gradwatch.non_finite.memory import Use
from gradwatch.non_finite.trace import Operation
from gradwatch.non_finite.walk import Record

# They hand values on as they are, or nearly: whoever asks for a maker asks behind them.
PASSING = frozenset(
    f"aten::{name}" for name in ("_to_copy", "clone", "copy_", "neg", "contiguous", "expand")
)
COMBINING = frozenset({"aten::add", "aten::sub"})
DEEPEST = 4
MOST_TWINS = 64


class Consumer(NamedTuple):
    """An operation that took the result in.

    Attributes:
        name: Its name.
        shares: It also read what the faulty operation had read.
        partners: Operations that made its other inputs.
        weighed: One of its other inputs went through ``xlogy`` too.
    """

    name: str
    shares: bool
    partners: tuple[str, ...]
    weighed: bool


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The neighbours of a fault.

    Attributes:
        makers: Index of the operation that made each input of the forward operation, -1 for none.
        consumers: Operations that took its result in.
        from_batch: Path in the batch of each input that it read as it came, empty for the others.
        twins: Earlier runs of the same operation in the same module, by index.
        scaling: Index of the operation that may have scaled the loss, -1 for none.
        chain: The way from the birth to the first bad parameter, empty where it met none.
    """

    makers: tuple[int, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    from_batch: tuple[str, ...] = ()
    twins: tuple[int, ...] = ()
    scaling: int = -1
    chain: str = ""


class _Neighbourhood:
    def __init__(self, record: Record, leaves: Mapping[int, Leaf]) -> None:
        self._trace, self._leaves = record.trace, leaves

    def around(self, fault: Fault) -> Surroundings:
        source = self._trace.operations.get(fault.source)
        made = [self._maker(use) for use in source.reads] if source else []
        return Surroundings(
            makers=tuple(maker.index if maker else -1 for maker in made),
            consumers=tuple(self._consumers(source, source, DEEPEST)) if source else (),
            from_batch=tuple(map(self._path, source.reads)) if source else (),
            twins=tuple(self._twins(fault.operation))[-MOST_TWINS:],
            scaling=self._scaling(),
        )

    def _maker(self, use: Use) -> Operation | None:
        writers = self._trace.memory.writers[use.storage][: use.version]
        maker = self._trace.operations[writers[-1]] if writers else None
        source = maker.reads[-1:] if maker and maker.name in PASSING else []
        return self._maker(source[0]) or maker if source else maker

    def _consumers(self, made: Operation, born: Operation, depth: int) -> Iterator[Consumer]:
        written = {use.storage for use in made.writes}
        for operation in self._readers(written, made.index):
            if operation.name in PASSING | COMBINING and depth:
                yield from self._consumers(operation, born, depth - 1)
            yield self._consumer(operation, written, born)

    def _readers(self, storages: set[int], after: int) -> Iterator[Operation]:
        for operation in self._trace.operations.values():
            later = operation.index > after and not operation.node
            if later and any(use.storage in storages for use in operation.reads):
                yield operation

    def _consumer(self, operation: Operation, written: set[int], born: Operation) -> Consumer:
        own = {use.storage for use in born.reads}
        others = [use for use in operation.reads if use.storage not in written]
        makers = [self._maker(use) for use in others]
        storages = {use.storage for use in others}
        return Consumer(
            operation.name,
            bool(own & storages),
            tuple(maker.name for maker in makers if maker),
            any(self._is_weighed(storage) for storage in storages),
        )

    def _is_weighed(self, storage: int) -> bool:
        forward = (each for each in self._trace.operations.values() if each.name == "aten::xlogy")
        return any(use.storage == storage for each in forward for use in each.reads)

    def _path(self, use: Use) -> str:
        leaf = self._leaves.get(use.storage) if self._maker(use) is None else None
        return leaf.name if leaf and leaf.kind == "batch" else ""

    def _twins(self, fault: Operation) -> Iterator[int]:
        for index, operation in self._trace.operations.items():
            same = (operation.name, operation.node) == (fault.name, fault.node)
            if same and index < fault.index and operation.call.module is fault.call.module:
                yield index

    def _scaling(self) -> int:
        """The last product of two single numbers before the backward: a scaler's work."""
        backward = (index for index, each in self._trace.operations.items() if each.node)
        first = next(backward, -1)
        before = [each for index, each in self._trace.operations.items() if index < first]
        # The gradient the backward begins with, a tensor of ones, comes in between.
        last = next((each for each in reversed(before) if "ones_like" not in each.name), None)
        single = last is not None and all(use.rows < 0 for use in last.reads)
        return last.index if last and single and last.name == "aten::mul" else -1


def surroundings_of(
    fault: Fault, record: Record, leaves: Mapping[int, Leaf], gradients: Mapping[int, str]
) -> Surroundings:
    """Look around a fault.

    Args:
        fault: What is to blame.
        record: What the replay recorded.
        leaves: Memory known from before the pass, by its number.
        gradients: Name of the parameter by the memory of its gradient.

    Returns:
        Its neighbours.
    """
    neighbours = _Neighbourhood(record, leaves).around(fault)
    return replace(neighbours, chain=chain_of(fault, record, gradients))
