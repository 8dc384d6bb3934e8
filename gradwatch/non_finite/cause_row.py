"""One row of the table of causes, and the words its texts are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gradwatch.non_finite.clues import Clues
from gradwatch.non_finite.evidence import Tally, shape_words


class Known(NamedTuple):
    """A cause that was recognised.

    Attributes:
        name: Name of the row.
        cause: What brought the fault about, with this step's numbers.
        remedy: What to do about it.
    """

    name: str
    cause: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cause: when it is one, in which words it is told, what helps.

    Attributes:
        name: Name, such as ``"sqrt_at_zero"``; the documentation's anchor.
        title: The cause without numbers.
        operations: Bare names of the operations it can happen in; empty for any.
        phase: ``"forward"``, ``"backward"``, or empty for both.
        evidence: Asks whether the numbers agree.
        cause: Puts it in words.
        remedy: What to do; ``{operation}`` stands for the operation's name.
    """

    name: str
    title: str
    remedy: str
    cause: Callable[[Clues], str]
    operations: frozenset[str] = frozenset()
    phase: str = ""
    evidence: Callable[[Clues], bool] = lambda _: True

    def fits(self, clues: Clues) -> bool:
        """Say whether this is the cause."""
        named = not self.operations or clues.operation in self.operations
        # What came in bad is no operation's doing.
        named = named and not (self.operations and clues.leaf)
        return named and self.phase in {"", clues.phase} and self.evidence(clues)


def names(text: str) -> frozenset[str]:
    """Split a line into names."""
    return frozenset(text.split())


def share(count: int, tally: Tally, what: str) -> str:
    """Say how many of a tensor's elements are something.

    Examples:
        >>> share(2, Tally(shape=(2, 3)), "exactly 0")
        '2 of 6 inputs are exactly 0'
    """
    verb = "is" if count == 1 else "are"
    return f"{count:,} of {tally.size:,} inputs {verb} {what}"


def of(tally: Tally) -> str:
    """Say which tensor is meant, by its shape."""
    return f"of {shape_words(tally.shape)}"


def in_samples(clues: Clues, most: int = 8) -> str:
    """Name the bad samples in brackets; empty where they are not known."""
    if not clues.samples:
        return ""
    if len(clues.samples) == clues.batch_size and clues.batch_size > 1:
        return f" (all {clues.batch_size:,} samples)"
    shown = ", ".join(map(str, clues.samples[:most]))
    word = "sample" if len(clues.samples) == 1 else "samples"
    return f" ({word} {shown}{', …' if len(clues.samples) > most else ''})"
