"""Walk back from a bad gradient or loss over recorded non-finite edges to where it was born."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gradwatch.non_finite.flags import Value
from gradwatch.non_finite.memory import Use
from gradwatch.non_finite.trace import Operation, Trace


class Birth(NamedTuple):
    """Where a bad value came into the record.

    Attributes:
        operation: The operation that made it, or that was the first to read it.
        leaf: The memory it lay in from the start; None where the operation made it.
        value: What was born.
    """

    operation: Operation
    leaf: Use | None
    value: Value


@dataclass(kw_only=True)
class Path:
    """What a walk came by.

    Attributes:
        births: Where it ended.
        entries: Backward operations that read a bad value out of the forward pass.
        passed: Operations it went through.
    """

    births: list[Birth] = field(default_factory=list)
    entries: list[Operation] = field(default_factory=list)
    passed: list[Operation] = field(default_factory=list)

    @property
    def earliest(self) -> Birth | None:
        """The birth that happened first."""
        return min(self.births, key=lambda birth: birth.operation.index, default=None)


class Record:
    """A finished trace with its flags on the host.

    Args:
        trace: The trace.
        values: What its flags said.
    """

    def __init__(self, trace: Trace, values: list[Value]) -> None:
        """Read the flags once."""
        self.trace = trace
        self._values = values

    def value(self, use: Use) -> Value:
        """Say what a tensor held."""
        return self._values[use.flag]

    def writer(self, use: Use) -> Operation | None:
        """Find the operation that put the bad value into a tensor; None: it came with it."""
        writers = self.trace.memory.writers[use.storage][: use.version]
        made = [self.trace.operations[index] for index in reversed(writers)]
        bad = [operation for operation in made if self._wrote_bad(operation, use.storage)]
        inside = made if use.storage not in self.trace.memory.outside else []
        return next(iter(bad + inside), None)

    def bad(self, uses: Iterable[Use], *, nan: bool) -> list[Use]:
        """Pick the tensors that hold NaN, or those that hold an infinity."""
        return [
            use for use in uses if (self.value(use) is Value.NAN if nan else self.value(use).is_inf)
        ]

    def walk(self, roots: Iterable[Use], reader: Operation | None, *, nan: bool) -> Path:
        """Follow NaN, or infinities, back to every place they were born.

        Args:
            roots: Bad tensors to start from.
            reader: The operation that read them; None for the ends of the pass.
            nan: Follow NaN; else infinities.

        Returns:
            Births and what lay on the way. No edge, no birth.
        """
        path, seen = Path(), set[int]()
        open_ends = [(use, reader) for use in self.bad(roots, nan=nan)]
        while open_ends:
            use, reader = open_ends.pop()
            made = self.writer(use)
            if made is None:
                if reader is not None:
                    path.births.append(Birth(reader, use, self.value(use)))
                continue
            if reader is not None and reader.node and not made.node:
                path.entries.append(reader)
            if made.index not in seen:
                seen.add(made.index)
                path.passed.append(made)
                open_ends += self._further(made, path, nan=nan)
        return path

    def _further(self, made: Operation, path: Path, *, nan: bool) -> list[tuple[Use, Operation]]:
        sources = self.bad(made.reads, nan=nan)
        # A literal explains the value as well as any tensor does.
        written = made.literal is Value.NAN if nan else made.literal.is_inf
        # Only of a row of nothing but −inf is this −inf: it says more than the mask it comes from.
        if written or not sources or made.name == "aten::logsumexp":
            worst = max((self.value(use) for use in made.writes), default=Value.FINITE)
            path.births.append(Birth(made, None, worst))
        return [(use, made) for use in sources]

    def _wrote_bad(self, operation: Operation, storage: int) -> bool:
        return any(use.storage == storage and self.value(use) for use in operation.writes)
