"""What the report lists: tables, numbers, coverage, configuration."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gradwatch.history import History
from gradwatch.report.markup import Html, join, tag
from gradwatch.report.overview import say_time
from gradwatch.report.story import Story
from gradwatch.tables import Cell, Table

MOST_ROWS = 200
# A longer table is shut: what it says is in a picture, or looked up.
MOST_OPEN_ROWS = 25
LONG = 40
STATES = ("hooked", "parameter gradients only", "blind")
MEANINGS = {
    "hooked": "the gradient at its outputs and those of its parameters",
    "parameter gradients only": "the gradients of its parameters, not those at its outputs",
    "blind": "nothing",
}


def show_tables(tables: Iterable[Table]) -> Html:
    """Give each table of the record; a long one is cut, and says so.

    Args:
        tables: Tables, in order; without one the section is left out.
    """
    shown = [_table(table) for table in tables]
    return tag("section", tag("h2", "Tables"), *shown, id="tables") if shown else Html()


def _table(table: Table) -> Html:
    cut = table.rows[:MOST_ROWS]
    rest = len(table.rows) - len(cut)
    more = tag("p", f"… and {rest:,} more rows in the record", class_="quiet") if rest else Html()
    size = f" at step {table.step:,}, {len(table.rows):,} row{'s' * (len(table.rows) != 1)}"
    heading = tag("summary", tag("b", table.title), tag("span", size, class_="quiet"))
    return tag(
        "details",
        heading,
        rows_of(*_without_empty(table.columns, cut), table.title),
        more,
        open=len(table.rows) <= MOST_OPEN_ROWS,
        class_="table",
    )


def _without_empty(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]]
) -> tuple[list[str], list[list[Cell]]]:
    """Leave columns out in which no row holds anything: what the device does not count, say."""
    kept = [i for i in range(len(columns)) if not rows or any(row[i] is not None for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


def rows_of(columns: Sequence[str], rows: Iterable[Sequence[Cell]], name: str) -> Html:
    """Give a table that scrolls in a frame of its own where the page is narrow.

    Args:
        columns: Headers.
        rows: Cells; a column of numbers stands at the right.
        name: What a screen reader calls it.
    """
    cells = [list(row) for row in rows]
    numeric = [_is_numeric([row[i : i + 1] for row in cells]) for i in range(len(columns))]
    styles = ["number" if is_so else "" for is_so in numeric]
    head = tag("tr", *map(_header, columns, styles))
    body = [tag("tr", *map(_cell, row, [*styles, *[""] * len(row)])) for row in cells]
    table = tag("table", tag("thead", head), tag("tbody", *body))
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=name)


def _is_numeric(column: Sequence[Sequence[Cell]]) -> bool:
    known = [cell for held in column for cell in held if cell is not None]
    return bool(known) and all(isinstance(cell, int | float) for cell in known)


def _header(column: str, style: str) -> Html:
    return tag("th", column, scope="col", class_=style or False)


def _cell(cell: Cell, style: str) -> Html:
    told = _say_cell(cell)
    # In a wide table the browser would break a sentence at each word.
    broad = "long" if len(told) > LONG else ""
    return tag("td", told, class_=style or broad or False)


def _say_cell(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return "–" if cell is None else f"{cell:,}" if isinstance(cell, int) else cell


def show_numbers(history: History) -> Html:
    """Give extremes and last value of every scalar.

    Args:
        history: The run; without a scalar nothing is shown.
    """
    rows = [row for key in history.keys() if (row := _scalar_row(history, key))]  # noqa: SIM118
    if not rows:
        return Html()
    table = rows_of(("key", "smallest", "largest", "last"), rows, "All scalars")
    return tag("details", tag("summary", f"All {len(rows)} scalars"), table)


def _scalar_row(history: History, key: str) -> tuple[Cell, ...] | None:
    bins = history.scalar(key)
    if bins is None or np.isnan(bins.low).all():
        return None
    last = bins.latest[~np.isnan(bins.latest)][-1]
    return key, float(np.nanmin(bins.low)), float(np.nanmax(bins.high)), float(last)


def show_coverage(story: Story) -> Html:
    """Say which layers are seen, how far, and why not further.

    Args:
        story: The run; the last start that told its coverage counts.
    """
    told = [header["coverage"] for header in story.headers if header.get("coverage")]
    parts = [_state(state, told[-1]) for state in _states(told[-1])] if told else []
    none = tag("p", "The record does not say what was watched.", class_="quiet")
    return tag("section", tag("h2", "Coverage"), *(parts or [none]), id="coverage")


def _states(coverage: Sequence[Mapping[str, str]]) -> list[str]:
    found = {each["state"] for each in coverage}
    return [*(state for state in STATES if state in found), *sorted(found - set(STATES))]


def _state(state: str, coverage: Sequence[Mapping[str, str]]) -> Html:
    reasons: dict[str, list[str]] = {}
    for each in coverage:
        if each["state"] == state:
            reasons.setdefault(each.get("reason", ""), []).append(each["layer"])
    count = sum(len(layers) for layers in reasons.values())
    seen = f" — seen: {MEANINGS[state]}" if state in MEANINGS else ""
    heading = tag(
        "h3", f"{count:,} of {len(coverage):,} {state}", tag("span", seen, class_="quiet")
    )
    return join(heading, *(_reason(*item) for item in reasons.items()))


def _reason(reason: str, layers: Sequence[str]) -> Html:
    names = tag("p", *(join(tag("code", layer), " ") for layer in layers), class_="names")
    count = f"{len(layers):,} layer{'s' * (len(layers) != 1)}"
    return tag("details", tag("summary", f"{count}: {reason}" if reason else count), names)


def show_configuration(story: Story) -> Html:
    """Give the options and versions of each start; of equal ones the first only.

    Args:
        story: The run.
    """
    parts = [_start(header) for header in _unlike(story.headers)]
    where = tag("p", "Run record: ", tag("code", str(story.path.absolute())), class_="quiet")
    return tag("section", tag("h2", "Configuration"), where, *parts, id="configuration")


def _unlike(headers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    unlike: list[Mapping[str, Any]] = []
    for header in headers:
        told = [(each.get("config"), each.get("versions")) for each in unlike]
        if (header.get("config"), header.get("versions")) not in told:
            unlike.append(header)
    return unlike


def _start(header: Mapping[str, Any]) -> Html:
    options = list(_flat(header.get("config", {})))
    versions = [(name, str(value)) for name, value in header.get("versions", {}).items()]
    tables = [
        rows_of(columns, rows, name)
        for columns, rows, name in (
            (("option", "value"), options, "Options"),
            (("package", "version"), versions, "Versions"),
        )
        if rows
    ]
    heading = tag("h3", f"Started {say_time(str(header.get('time', '')))}")
    return join(heading, tag("div", *tables, class_="beside"))


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _say(value)


def _say(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) and value else str(value)
