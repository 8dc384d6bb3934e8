"""A table to be told: what a profile or a trial came to, row by row."""

from __future__ import annotations

from dataclasses import dataclass

Cell = str | float | int | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows for people, and the same rows for machines.

    Attributes:
        name: Short key, such as ``"roofline"``; a later table of that name replaces it.
        title: One line above the table.
        step: Optimizer step it was made at.
        columns: Column headers, each with its unit.
        rows: One tuple a row, in the order of the columns; None where there is no value.
    """

    name: str
    title: str
    step: int
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
