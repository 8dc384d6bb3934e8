"""The table of symptoms, and the question it is asked."""

from __future__ import annotations

from gradwatch.findings import Finding
from gradwatch.symptoms.of_numbers import ROWS as OF_NUMBERS
from gradwatch.symptoms.of_time import ROWS as OF_TIME
from gradwatch.symptoms.row import Row
from gradwatch.symptoms.signs import Signs

SYMPTOMS: tuple[Row, ...] = (*OF_TIME, *OF_NUMBERS)


def find_symptoms(signs: Signs, step: int = 0) -> list[Finding]:
    """Look for every symptom of the table.

    Args:
        signs: What is known; rows that need something else say nothing.
        step: Optimizer step.

    Returns:
        A finding for each symptom that shows, in the order of the table.

    Examples:
        >>> [finding.rule for finding in find_symptoms(Signs(devices=4))]
        ['one_process_many_devices']
    """
    found = (row.judge(signs, step) for row in SYMPTOMS)
    return [finding for finding in found if finding is not None]
