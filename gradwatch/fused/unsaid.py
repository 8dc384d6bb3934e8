"""What is said of changes that were never tried, where a terminal has no room for the reasons."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch.fused.rows import NUMBERS, TRIED, Outcome, TrialRow
from gradwatch.words import counted

__all__ = ["unsaid"]

MOST_REASONS, MOST_NAMES = 6, 4


def unsaid(rows: Sequence[TrialRow]) -> list[str]:
    """Say why the rest was not tried, or is worth it: each reason in one line.

    A narrow terminal cuts the reasons off the table, and nothing was said of these while they were
    tried.

    Args:
        rows: All rows.

    Returns:
        At most seven lines.
    """
    alike: dict[tuple[Outcome, str], list[TrialRow]] = {}
    for row in rows:
        if row.verdict not in TRIED:
            alike.setdefault((row.verdict, NUMBERS.sub("", row.reason)), []).append(row)
    lines = [
        f"{_changes(same)}: {verdict}, {same[0].reason}" for (verdict, _), same in alike.items()
    ]
    left = len(lines) - MOST_REASONS
    return lines[:MOST_REASONS] + ([f"… and {counted(left, 'reason')} more"] if left > 0 else [])


def _changes(rows: Sequence[TrialRow]) -> str:
    own = (f"{row.kind} ({row.provider})" if row.provider else row.kind for row in rows)
    names = list(dict.fromkeys(own))
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"
