"""From where a bad value was born to its cause: one row a cause, the first that fits."""

from __future__ import annotations

from gradwatch.non_finite.cause_row import Known, Row
from gradwatch.non_finite.cause_rules_domain import DOMAIN
from gradwatch.non_finite.cause_rules_normal import NORMAL
from gradwatch.non_finite.cause_rules_origin import ORIGIN
from gradwatch.non_finite.cause_rules_range import RANGE
from gradwatch.non_finite.cause_rules_softmax import SOFTMAX
from gradwatch.non_finite.clues import Clues

CAUSES: tuple[Row, ...] = (*ORIGIN, *SOFTMAX, *NORMAL, *DOMAIN, *RANGE)


def cause_of(clues: Clues) -> Known | None:
    """Name the cause of a fault.

    Args:
        clues: What is known about it.

    Returns:
        The cause and what to do about it; None where no row fits: the evidence without a guess.

    Examples:
        >>> from gradwatch.non_finite.evidence import Seen, Tally
        >>> zeros = Seen(name="aten::log", inputs=(Tally(shape=(3,), low=0, high=1, zeros=2),))
        >>> cause_of(Clues(operation="log", kind="Inf", seen=zeros)).cause
        'log of 0: 2 of 3 inputs are exactly 0'
        >>> cause_of(Clues(operation="no_such_operation"))
    """
    row = next((row for row in CAUSES if row.fits(clues)), None)
    if row is None:
        return None
    return Known(row.name, row.cause(clues), row.remedy.replace("{operation}", clues.operation))
