"""Text for the terminal: coverage in one line, findings as they come, a table at the end.

Whole blocks are handed to ``write``; the usual one keeps progress bars intact.
"""

import io
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gradwatch.findings import Finding, Severity
from gradwatch.printable import printable
from gradwatch.readings import Coverage, FlowReading, StepRecord
from gradwatch.sinks.bars import say
from gradwatch.sinks.console_tables import UNTOLD, render_table
from gradwatch.sinks.keys import SMALLEST, Watchlist, init, update
from gradwatch.tables import Table
from gradwatch.words import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

MOST_LAYERS = 8
MOST_FINDINGS = 5
MOST_TOTALS = 5
MOST_NAMES = 3
LEAST_WIDTH = 40
# The first ones stay where a terminal is narrow.
NUMBERS = ("gradient", "median", "update", "weight")
# What a column of numbers and that of the state take, gaps included.
NUMBER, STATE = len("1.23e-45") + 2, len("no gradient") + 2
# A name is cut to no less while a column of numbers can give way.
NAME = 16
STYLES: dict[Severity, str] = {"info": "cyan", "warning": "yellow", "error": "bold red"}
SHOWN_TOTALS = ("grad/norm", "grad/clip_rate", "grad/non_finite", "grad/skipped")
# Not worth a word as long as they are zero.
COUNTS = ("grad/non_finite", "grad/skipped")


class ConsoleSink:
    """Tell a person at a terminal.

    Examples:
        >>> sink = ConsoleSink()
        >>> sink.start([Coverage(layer="net.0", state="hooked")])
        gradwatch watches 1 of 1 layer
    """

    def __init__(
        self,
        write: Callable[[str], object] = say,
        *,
        color: bool | None = None,
        width: int | None = None,
    ) -> None:
        """Choose where text goes.

        Args:
            write: Is handed whole blocks of lines, without the last newline.
            color: Write terminal colours; None: only where ``write`` is the usual one and
                the standard output is a terminal.
            width: Characters per line; None: the terminal's, at least 40.
        """
        self._write = write
        self._color = color
        self._width = width
        self._lists: dict[tuple[str, ...], Watchlist] = {}
        self._last: StepRecord | None = None
        self._flows: dict[tuple[str, ...], FlowReading] = {}
        self._findings: Counter[tuple[str, str]] = Counter()
        self._first: dict[tuple[str, str], Finding] = {}
        self._closed = False

    def start(self, coverage: Sequence[Coverage]) -> None:
        """Say what is watched, and what is not and why."""
        self._write(_wrapped(coverage_line(coverage), self._columns()))

    def record(self, record: StepRecord) -> None:
        """Keep what the table at the end needs."""
        self._last = record
        if record.flow is not None:
            layers = record.flow.layers
            self._flows[layers] = _with_update(record.flow, self._flows.get(layers))
            known = self._lists.get(layers) or init(layers)
            self._lists[layers] = update(known, record.flow, MOST_LAYERS)

    def finding(self, finding: Finding) -> None:
        """Write the first finding of its kind at once; count those that repeat it."""
        key = (finding.rule, finding.layer)
        self._findings[key] += 1
        if key not in self._first:
            self._first[key] = finding
            self._write(self._render(_block(finding, self._columns())))

    def table(self, table: Table) -> None:
        """Write a table, at most 20 lines of it, unless it is material for the report."""
        if table.name not in UNTOLD and table.rows:
            self._write(self._render(*render_table(table, self._columns())))

    def progress(self, text: str) -> None:
        """Write the line: a training that stands still for minutes looks dead."""
        self._write(f"gradwatch: {text}")

    def close(self) -> None:
        """Write the table; nothing where nothing was recorded."""
        if not self._closed and self._last is not None:
            self._write(self._render(*self._summary(self._last)))
        self._closed = True

    def _summary(self, last: StepRecord) -> "list[RenderableType]":
        # Several optimizers have a total each: the prefix is followed by their name.
        told = {key: value for key, value in last.scalars.items() if key.startswith(SHOWN_TOTALS)}
        shown = [key for key, value in told.items() if value or not key.startswith(COUNTS)]
        shown.sort(key=lambda key: key.startswith(COUNTS))
        totals = ", ".join(f"{key} {told[key]:.4g}" for key in shown[:MOST_TOTALS])
        head = (
            f"gradwatch: {counted(last.step + 1, 'step')}, {counted(len(self._first), 'finding')}"
        )
        rows = self._rows()
        head = f"{head}; at the last step: {totals}" if totals else head
        parts: list[RenderableType] = [_wrapped(head, self._columns())]
        return [*parts, *([_table(rows, self._columns())] if rows else []), *self._finding_lines()]

    def _rows(self) -> list[tuple[str, ...]]:
        named = {layer for _, layer in self._first}
        rows = [
            (layer not in named, -known.peak[i], layer, flow, i, known.median[i])
            for layers, known in self._lists.items()
            for flow in [self._flows[layers]]
            for i, layer in enumerate(layers)
            if layer in named or i in known.kept
        ]
        return [_cells(*row[2:]) for row in sorted(rows, key=lambda row: row[:2])[:MOST_LAYERS]]

    def _finding_lines(self) -> "list[RenderableType]":
        shown = list(self._first.items())[:MOST_FINDINGS]
        lines = [_repeated(finding, self._findings[key]) for key, finding in shown]
        more = len(self._first) - len(shown)
        lines = [textwrap.shorten(line, self._columns(), placeholder=" …") for line in lines]
        return [*lines, *([f"… and {counted(more, 'finding')} more"] if more else [])]

    def _columns(self) -> int:
        return self._width or max(shutil.get_terminal_size().columns, LEAST_WIDTH)

    def _render(self, *parts: "RenderableType") -> str:
        from rich.console import Console

        color = self._color
        if color is None:
            color = self._write is say and sys.stdout.isatty()
        text = io.StringIO()
        console = Console(
            file=text,
            width=self._columns(),
            force_terminal=color,
            color_system="standard" if color else None,
            highlight=False,
            markup=False,
            emoji=False,
        )
        for part in parts:
            console.print(part, overflow="fold")
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def coverage_line(coverage: Sequence[Coverage]) -> str:
    """Say in one line how much of the model is seen, and why not more.

    Args:
        coverage: The coverage report.

    Examples:
        >>> coverage_line(
        ...     [
        ...         Coverage(layer="net.0", state="hooked"),
        ...         Coverage(layer="net.1", state="blind", reason="compiled"),
        ...     ]
        ... )
        'gradwatch watches 1 of 2 layers; blind: net.1 (compiled)'
    """
    seen = sum(part.state != "blind" for part in coverage)
    line = f"gradwatch watches {seen} of {counted(len(coverage), 'layer')}"
    for state in ("parameter gradients only", "blind"):
        parts = [part for part in coverage if part.state == state]
        if parts:
            line += f"; {state}: {_reasons(parts)}"
    return line


def _reasons(parts: Sequence[Coverage]) -> str:
    """Name each reason once, with the first layers it holds for."""
    by_reason: dict[str, list[str]] = {}
    for part in parts:
        by_reason.setdefault(part.reason or "no reason known", []).append(part.layer)
    told = []
    for reason, layers in by_reason.items():
        more = f" and {len(layers) - MOST_NAMES} more" if len(layers) > MOST_NAMES else ""
        told.append(f"{', '.join(layers[:MOST_NAMES])}{more} ({reason})")
    return ", ".join(told)


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(printable(text), width, subsequent_indent="  ")


def _block(finding: Finding, width: int) -> "Text":
    from rich.text import Text

    head, *rest = finding.lines()
    title = _wrapped(f"gradwatch {finding.severity}: {head}", width)
    # Under the text of the first line, which stands behind the word that names it.
    lines = [textwrap.fill(line, width, subsequent_indent=" " * 12) for line in rest]
    text = Text(title, style=STYLES[finding.severity])
    return text.append("".join(f"\n{line}" for line in lines), style="default not bold")


def _table(rows: Sequence[tuple[str, ...]], width: int) -> "RichTable":
    from rich import box
    from rich.table import Table as RichTable

    table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("layer", no_wrap=True)
    longest = min(max(len(layer) for layer, *_ in rows), NAME)
    shown = max(min((width - STATE - longest) // NUMBER, len(NUMBERS)), 1)
    for name in NUMBERS[:shown]:
        table.add_column(name, justify="right", no_wrap=True, min_width=len("1.23e-45"))
    table.add_column("state", no_wrap=True, min_width=len("no gradient"))
    for layer, *cells, state in rows:
        table.add_row(_end(layer, width - STATE - shown * NUMBER), *cells[:shown], state)
    return table


def _end(layer: str, room: int) -> str:
    """Keep the end of a name: siblings differ there."""
    layer = printable(layer)
    return layer if len(layer) <= room else "…" + layer[1 - room :]


def _with_update(flow: FlowReading, before: FlowReading | None) -> FlowReading:
    """Keep the last update that was measured: the last step is seldom one of those."""
    if flow.update_ratio is not None or before is None:
        return flow
    return replace(flow, update_ratio=before.update_ratio)


def _cells(layer: str, flow: FlowReading, i: int, median: float) -> tuple[str, ...]:
    ratio = np.nan if flow.update_ratio is None else flow.update_ratio[i]
    usual = 0.0 if median <= SMALLEST else median
    numbers = (flow.grad_norm[i], usual, ratio, flow.weight_norm[i])
    return layer, *(f"{x:.3g}" if np.isfinite(x) else "–" for x in numbers), _state(flow, i)


def _state(flow: FlowReading, i: int) -> str:
    states = {
        "frozen": flow.frozen[i],
        "no gradient": not flow.has_grad[i],
        "NaN or Inf": np.isinf(flow.grad_norm[i]),
        "unknown": np.isnan(flow.grad_norm[i]),
        "exactly 0": flow.grad_norm[i] == 0,
    }
    return next((name for name, holds in states.items() if holds), "")


def _repeated(finding: Finding, count: int) -> str:
    times = f" ({count:,} times)" if count > 1 else ""
    return f"{finding.severity}{times}: {finding.lines()[0]}"
