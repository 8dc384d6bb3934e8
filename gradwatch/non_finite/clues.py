"""What is known about a fault, as plain values: the one thing the rules about causes look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from gradwatch.non_finite.blame import Fault
from gradwatch.non_finite.evidence import NOTHING, Seen, bare
from gradwatch.non_finite.surroundings import Consumer, Surroundings

SELECTING = frozenset(
    {"where", "masked_fill", "index_put", "masked_select", "index", "masked_scatter"}
)
COMPARING = frozenset({"gt", "lt", "ge", "le", "eq", "ne", "isfinite", "isnan", "logical_not"})


@dataclass(frozen=True, kw_only=True)
class Clues:
    """Everything a rule may ask about a fault.

    Attributes:
        operation: Name of the forward operation, bare: ``"sqrt"``; empty where unknown.
        phase: ``"forward"`` or ``"backward"``.
        kind: ``"NaN"`` or ``"Inf"``.
        leaf: Kind of the memory that came in bad; empty where an operation made the value.
        path: Name of that memory.
        made_by: Operation whose bad result was selected away later.
        constant: Words for a constant infinity that took part.
        seen: The forward operation.
        fault: The blamed operation; in the backward phase another one.
        makers: The operations that made the forward operation's inputs, in order.
        consumers: The operations that took its result in.
        from_batch: Path in the batch of each input that it read as it came, empty for the others.
        peaks: Largest magnitudes of earlier runs of the same operation in the same module.
        scale: Factor the loss was multiplied with last of all, 1 without one.
        samples: Indices of the bad samples.
        batch_size: Number of samples of the micro-batch; None where unknown.
    """

    operation: str = ""
    phase: str = "forward"
    kind: str = "NaN"
    leaf: str = ""
    path: str = ""
    made_by: str = ""
    constant: str = ""
    seen: Seen = NOTHING
    fault: Seen = NOTHING
    makers: tuple[Seen, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    from_batch: tuple[str, ...] = ()
    peaks: tuple[float, ...] = ()
    scale: float = 1.0
    samples: tuple[int, ...] = ()
    batch_size: int | None = None

    def path_of(self, place: int) -> str:
        """Path in the batch of an input that was read as it came; empty for another."""
        return self.from_batch[place] if place < len(self.from_batch) else ""

    def maker(self, place: int) -> str:
        """Bare name of the operation that made an input; empty for none."""
        return bare(self.makers[place].name) if place < len(self.makers) else ""

    @property
    def divisor_zeros(self) -> int:
        """Zeros in what is divided by."""
        divisors = self.seen.inputs[1:] if self.operation == "div" else self.seen.inputs
        return sum(each.zeros for each in divisors) + (0.0 in self.seen.numbers)

    @property
    def growth(self) -> float:
        """Mean factor from run to run of the same operation; 0 where it does not grow steadily."""
        peaks = [peak for peak in self.peaks if isfinite(peak) and peak > 0]
        rising = all(later > earlier for earlier, later in pairwise(peaks))
        steps = len(peaks) - 1
        return float((peaks[-1] / peaks[0]) ** (1 / steps)) if steps > 1 and rising else 0.0

    @property
    def is_selected(self) -> bool:
        """True where a selection or a product with a mask took the result in."""
        return any(_selects(consumer) for consumer in self.consumers)


def clues_of(
    fault: Fault,
    around: Surroundings,
    seen: Mapping[int, Seen],
    *,
    samples: tuple[int, ...] = (),
    batch_size: int | None = None,
) -> Clues:
    """Gather what the record and the close look know about a fault.

    Args:
        fault: What is to blame.
        around: Its neighbours.
        seen: What the close look saw, by index.
        samples: Indices of the bad samples.
        batch_size: Number of samples of the micro-batch.

    Returns:
        The clues.
    """
    return Clues(
        operation=bare(fault.forward),
        phase="backward" if fault.backward else "forward",
        kind=fault.value.word,
        leaf=fault.leaf.kind if fault.leaf else "",
        path=fault.leaf.name if fault.leaf else "",
        made_by=fault.made_by,
        constant=fault.constant,
        seen=seen.get(fault.source, NOTHING),
        fault=seen.get(fault.operation.index, NOTHING),
        makers=tuple(seen.get(index, NOTHING) for index in around.makers),
        consumers=around.consumers,
        from_batch=around.from_batch,
        peaks=tuple(seen[index].output.peak for index in around.twins if index in seen),
        scale=_scale(seen.get(around.scaling, NOTHING)),
        samples=samples,
        batch_size=batch_size,
    )


def _selects(consumer: Consumer) -> bool:
    masked = bare(consumer.name) == "mul" and COMPARING & {bare(each) for each in consumer.partners}
    return bare(consumer.name) in SELECTING or bool(masked)


def _scale(scaling: Seen) -> float:
    # Both factors are single numbers; the loss comes first.
    factor = scaling.input(1).peak if scaling.name else 1.0
    return factor if isfinite(factor) else 1.0
