"""Tables for a terminal: few lines, no line wider than it, and what was left out is said."""

from collections.abc import Sequence
from itertools import accumulate
from textwrap import shorten
from typing import TYPE_CHECKING

from gradwatch.printable import printable
from gradwatch.tables import Cell, Table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable

MOST_ROWS = 14
LONGEST_CELL = 48
# The first column, names as a rule, is cut to no less while another column can come in for it.
NAME = 24
GAP = 2
# Made unasked, or material for the report: printing them would be noise.
UNTOLD = frozenset({"ceilings", "graph", "kernels", "saved"})


def render_table(table: Table, width: int) -> "list[RenderableType]":
    """Give a title, at most 14 rows and a line about what is left out: 20 lines at most.

    Args:
        table: What is shown.
        width: Characters per line.
    """
    rows = [[_text(cell) for cell in row] for row in table.rows[:MOST_ROWS]]
    widths = _widths(table.columns, rows)
    least = [min(widths[0], NAME), *widths[1:]]
    shown = _fitting(least, width)
    widths[0] = min(widths[0], max(width - sum(own + GAP for own in least[1:shown]), NAME))
    parts: list[RenderableType] = [
        shorten(printable(f"gradwatch: {table.title}"), width, placeholder=" …"),
        _rich(table, rows, widths[:shown]),
    ]
    left_out = _left_out(table, len(rows), shown)
    return [*parts, *([shorten(left_out, width, placeholder=" …")] if left_out else [])]


def _rich(table: Table, rows: Sequence[Sequence[str]], widths: Sequence[int]) -> "RichTable":
    from rich import box
    from rich.table import Table as RichTable

    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for number, width in enumerate(widths):
        right = all(not isinstance(row[number], str) for row in table.rows)
        name = _cut(table.columns[number], width)
        drawn.add_column(name, justify="right" if right else "left", no_wrap=True, width=width)
    for row in rows:
        drawn.add_row(*(_cut(cell, width) for cell, width in zip(row, widths, strict=False)))
    return drawn


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    cells = zip(columns, *rows, strict=True)
    return [min(max(map(len, column)), LONGEST_CELL) for column in cells]


def _fitting(widths: Sequence[int], width: int) -> int:
    """Count the columns that fit, from the left; the first one always does."""
    ends = accumulate(own + GAP for own in widths)
    return max(sum(end - GAP <= width for end in ends), 1)


def _left_out(table: Table, rows: int, columns: int) -> str:
    more, hidden = len(table.rows) - rows, ", ".join(table.columns[columns:])
    parts = [f"{more:,} more rows"] if more else []
    parts += [f"columns {hidden}"] if hidden else []
    return f"… and {' and '.join(parts)}" if parts else ""


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4g}" if isinstance(cell, float) else printable(str(cell).replace("\n", " "))


def _cut(text: str, width: int) -> str:
    """Keep begin and end of what is too long: siblings differ at the end."""
    if len(text) <= width:
        return text
    head = width // 3
    return f"{text[:head]}…{text[head + 1 - width :]}"
