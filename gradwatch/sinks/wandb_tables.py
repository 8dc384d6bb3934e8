"""Findings and told tables as tables of W&B."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from gradwatch.findings import Finding
from gradwatch.printable import printable
from gradwatch.tables import Cell, Table

if TYPE_CHECKING:
    import wandb

MOST_ROWS = 1000
# Where a name alone would not say which part of the page it belongs to.
PLACES = {
    "ceilings": "roofline/ceilings",
    "kernels": "roofline/kernels",
    "phases": "roofline/phases",
    "trials": "fused/trials",
}
COLUMNS = ("step", "rule", "layer", "severity", "summary", "evidence", "cause", "remedy", "rank")


def table_key(name: str) -> str:
    """Give the metric key of a told table.

    Args:
        name: Name of the table.

    Examples:
        >>> table_key("roofline"), table_key("trials")
        ('roofline/table', 'fused/trials')
    """
    return PLACES.get(name, f"{name}/table")


def told_table(table: Table) -> "wandb.Table":
    """Give a told table as one of W&B's, its first 1,000 rows."""
    return _table(table.columns, table.rows[:MOST_ROWS])


def findings_table(findings: Sequence[Finding]) -> "wandb.Table":
    """Give the table of findings, one row each, the first 1,000."""
    return _table(COLUMNS, [_row(finding) for finding in findings[:MOST_ROWS]])


def _row(finding: Finding) -> tuple[Cell, ...]:
    plain = finding.as_dict()
    plain["evidence"] = ", ".join(f"{name}={value}" for name, value in finding.evidence.items())
    return tuple(plain[column] for column in COLUMNS)


def _table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> "wandb.Table":
    import wandb

    data: list[list[Any]] = [[_plain(cell) for cell in row] for row in rows]
    # A column of one kind can be sorted; W&B refuses another kind unless it is announced.
    mixed = any(_mixes(cells) for cells in zip(*data, strict=True))
    names = cast("list[str | int]", list(columns))
    return wandb.Table(columns=names, data=data, allow_mixed_types=mixed)


def _mixes(cells: Iterable[Cell]) -> bool:
    return len({isinstance(cell, str) for cell in cells if cell is not None}) > 1


def _plain(cell: Cell) -> Cell:
    """W&B writes NaN as JSON does not know it, and fails on half a character."""
    if isinstance(cell, str):
        return printable(cell)
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell
