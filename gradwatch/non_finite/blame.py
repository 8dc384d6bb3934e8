"""Decide which of the births is the fault, and say where it stands in the user's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gradwatch.non_finite.flags import Value
from gradwatch.non_finite.memory import Use
from gradwatch.non_finite.trace import Operation
from gradwatch.non_finite.walk import Birth, Path, Record

REPRODUCIBLE = "reproducible"
NOT_RESTORABLE = "state not restorable"
NOT_REPRODUCIBLE = "not reproducible"
ONLY_COMPILED = "only when compiled"
NO_REPLAY = "no replay"

Evidence = float | int | str


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Where a non-finite value was born, and how that is known.

    Attributes:
        place: Layer as the user wrote it, or ``<loss>``, ``<input>``, ``<optimizer>``, ``<root>``.
        kind: ``"NaN"`` or ``"Inf"``; empty where nothing was found.
        phase: ``"forward"`` or ``"backward"``; empty where unknown.
        operation: ``"aten::sqrt"``, ``"backward of aten::sqrt"``, or empty.
        verdict: Does it happen again? One of the constants of this module.
        call: Which call of the layer, counted from 0.
        calls: How often the step calls the layer.
        after: Inner module the operation stands after, if it stands between modules.
        before: Inner module the operation stands before.
        samples: Indices of the bad samples; only where dimension 0 is the batch.
        batch_path: Tensor of the batch that came in bad, such as ``"batch[0]"``.
        batch_index: Index of the batch.
        micro_batch: Index of the micro-batch within the step.
        batch_size: Number of samples of the micro-batch.
        source: File, line and text of the user's code.
        dtype: Type of what the operation computed, such as ``"float16"``.
        max_input: Largest finite magnitude that went into the operation; NaN where unknown.
        hint: What the shape of the fault suggests looking for.
        cause_name: Name of the cause in the table, empty where none fits.
        cause: What brought it about, with this step's numbers.
        remedy: What helps against that cause.
        evidence: Further numbers and words.
    """

    place: str
    verdict: str
    kind: str = ""
    phase: str = ""
    operation: str = ""
    call: int = 0
    calls: int = 1
    after: str = ""
    before: str = ""
    samples: tuple[int, ...] = ()
    batch_path: str = ""
    batch_index: int = 0
    micro_batch: int = 0
    batch_size: int | None = None
    source: str = ""
    dtype: str = ""
    max_input: float = float("nan")
    hint: str = ""
    cause_name: str = ""
    cause: str = ""
    remedy: str = ""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)


class Leaf(NamedTuple):
    """Memory that was there before the pass.

    Attributes:
        kind: ``"batch"``, ``"parameter"``, ``"buffer"``, or ``"gradient"`` for one the
            backward pass was started with.
        name: Path in the batch, or name as the user wrote it.
    """

    kind: str
    name: str


class Fault(NamedTuple):
    """The birth that is to blame.

    Attributes:
        operation: The operation that is blamed; of a leaf: the first that read it.
        leaf: What came in bad, None where an operation made it.
        value: What was born.
        backward: True where the backward pass brought it about.
        source: Index of the forward operation whose line of code is shown, -1 if unknown.
        forward: Its name.
        made_by: Operation whose swallowed result the backward read, empty otherwise.
        constant: Words for a constant infinity that took part.
    """

    operation: Operation
    leaf: Leaf | None
    value: Value
    backward: bool
    source: int
    forward: str
    made_by: str = ""
    constant: str = ""


class Judge:
    """The rule that picks the fault.

    Args:
        record: What the replay recorded.
        leaves: Memory known from before, by its number.
    """

    def __init__(self, record: Record, leaves: Mapping[int, Leaf]) -> None:
        """Keep the record and what is known about memory."""
        self._record = record
        self._leaves = leaves

    def fault(self, loss: list[Use], gradients: list[Use]) -> Fault | None:
        """Find the fault behind a bad loss or, with a finite one, behind bad gradients.

        Args:
            loss: The loss, or every root of the backward pass.
            gradients: Gradients of the parameters.

        Returns:
            The fault; None where nothing bad is connected to anything recorded.
        """
        for roots in (loss, gradients):
            for nan in (True, False):
                path = self._record.walk(roots, None, nan=nan)
                if path.births:
                    return self._choose(path, nan=nan, finite_loss=roots is gradients)
        return None

    def _choose(self, path: Path, *, nan: bool, finite_loss: bool) -> Fault | None:
        birth = path.earliest
        constant = ""
        if nan and birth and birth.leaf is None:
            birth, constant = self._behind(birth)
        elif not nan:
            computed = [each for each in path.births if not self._is_constant(each)]
            birth = min(computed, key=lambda each: each.operation.index, default=None)
            birth = birth or self._where_it_turned(path, finite_loss=finite_loss)
        return self._settle(birth, path, constant, finite_loss=finite_loss) if birth else None

    def _behind(self, birth: Birth) -> tuple[Birth, str]:
        """Ask where the infinity that an operation turned into NaN was born."""
        operation = birth.operation
        infinite = self._record.walk(operation.reads, operation, nan=False).births
        computed = [each for each in infinite if not self._is_constant(each)]
        if computed:
            return min(computed, key=lambda each: each.operation.index), ""
        return birth, ", ".join(sorted({self._constant(each) for each in infinite}))

    def _is_constant(self, birth: Birth) -> bool:
        if birth.leaf is None:
            return birth.operation.literal.is_inf
        known = self._leaves.get(birth.leaf.storage)
        if known and known.kind == "batch":
            # A mask that comes with the batch is full of −inf; +inf is no mask.
            return birth.value is Value.MINUS_INF
        return known is None or known.kind == "buffer"

    def _constant(self, birth: Birth) -> str:
        known = self._leaves.get(birth.leaf.storage) if birth.leaf else None
        if known:
            return f"{known.kind} {known.name}"
        return f"a literal in {birth.operation.name}" if birth.leaf is None else "a constant"

    def _where_it_turned(self, path: Path, *, finite_loss: bool) -> Birth | None:
        """All infinities were constants: blame the operation that let one into the result."""
        made = [each for each in path.passed if bool(each.node) == finite_loss] or path.passed
        if not made:
            return path.earliest
        pick = min if finite_loss else max
        return Birth(pick(made, key=lambda each: each.index), None, Value.INF)

    def _settle(self, birth: Birth, path: Path, constant: str, *, finite_loss: bool) -> Fault:
        operation = birth.operation
        leaf = self._leaf(birth)
        swallowed = finite_loss and not operation.node and birth.leaf is None
        if swallowed and path.entries and not self._escaped(operation):
            entry = min(path.entries, key=lambda each: each.index)
            return Fault(
                entry, None, birth.value, True, *self._forward(entry), operation.name, constant
            )
        # A loss that stays finite has selected away what came in bad; the backward had not.
        made_by = operation.name if leaf and finite_loss and path.entries else ""
        backward, forward = bool(operation.node), self._forward(operation)
        return Fault(operation, leaf, birth.value, backward, *forward, made_by, constant)

    def _forward(self, operation: Operation) -> tuple[int, str]:
        index = operation.origin if operation.node else operation.index
        return index, self._record.trace.names[index] if index >= 0 else ""

    def _leaf(self, birth: Birth) -> Leaf | None:
        if birth.leaf is None:
            return None
        storage = birth.leaf.storage
        known = self._leaves.get(storage)
        if known is not None or not birth.operation.node:
            return known
        forward = (each for each in self._record.trace.operations.values() if not each.node)
        seen = any(use.storage == storage for each in forward for use in each.reads)
        return None if seen else Leaf("gradient", "")

    def _escaped(self, born: Operation) -> bool:
        """Ask whether a bad value left the call it was born in; a twin in a second run cannot."""
        born = self._first_run(born)
        tainted = {born.index}
        for index, operation in self._record.trace.operations.items():
            if index > born.index and not operation.node and self._takes(operation, tainted):
                if born.call not in operation.call.chain():
                    return True
                tainted.add(index)
        return False

    def _takes(self, operation: Operation, tainted: set[int]) -> bool:
        made = (self._record.writer(use) for use in operation.reads if self._record.value(use))
        return any(writer is not None and writer.index in tainted for writer in made)

    def _first_run(self, born: Operation) -> Operation:
        first = born.call.first
        if first is None:
            return born
        place = born.call.operations.index(born.index)
        twins = first.operations[place : place + 1]
        twin = self._record.trace.operations[twins[0]] if twins else born
        return twin if twin.name == born.name else born
