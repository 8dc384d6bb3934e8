"""Run records read back: what `RunRecordSink` wrote, crashed runs included."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradwatch.errors import ConfigurationError
from gradwatch.findings import Finding
from gradwatch.readings import BoolArray, FlowReading, StepRecord
from gradwatch.sinks.record import ARRAYS
from gradwatch.tables import Table

KINDS = ("header", "record", "finding", "table", "footer", "unreadable")


class RunRecord(NamedTuple):
    """A run as its record tells it.

    Attributes:
        headers: Versions, configuration and coverage; one for each time the run was started.
        records: Recorded steps, in order.
        findings: Findings, in order.
        tables: The last table of each name, in the order their names first came.
        footers: Counts; fewer than headers where the run crashed.
        unreadable: Number of lines that were cut off.
    """

    headers: list[dict[str, Any]]
    records: list[StepRecord]
    findings: list[Finding]
    tables: dict[str, Table]
    footers: list[dict[str, Any]]
    unreadable: int


class Line(NamedTuple):
    """One line of a run record.

    Attributes:
        kind: ``"header"``, ``"record"``, ``"finding"``, ``"table"``, ``"footer"``, or
            ``"unreadable"`` where a crash or a full disk cut it off.
        value: What it holds: a StepRecord, Finding or Table, else the plain mapping.
        end: Bytes of the file up to its end.
    """

    kind: str
    value: Any
    end: int


def read(path: str | Path) -> RunRecord:
    """Read a run record, also one whose run crashed in the middle of a line.

    Args:
        path: The file.

    Raises:
        ConfigurationError: If no line of the file is one of a run record.
    """
    lines = list(stream(path))
    of = {kind: [line.value for line in lines if line.kind == kind] for kind in KINDS}
    if not (of["header"] or of["record"] or of["finding"]):
        raise ConfigurationError(f"{path} is no run record: no line of it can be read as one")
    tables = {table.name: table for table in of["table"]}
    unreadable = len(of["unreadable"])
    return RunRecord(of["header"], of["record"], of["finding"], tables, of["footer"], unreadable)


def stream(path: str | Path) -> Iterator[Line]:
    """Give what a run record holds line by line, so that a long one needs no memory.

    A file that still grows is read as far as it goes.

    Args:
        path: The file.
    """
    layers: dict[int, Sequence[str]] = {}
    end = 0
    with Path(path).open("rb") as file:
        for raw in file:
            end += len(raw)
            text = raw.decode(errors="replace").rstrip("\n")
            kind, value = _read_line(text, layers) if text else ("", None)
            if kind in KINDS:
                yield Line(kind, value, end)


def unpack_flow(layers: Sequence[str], packed: Mapping[str, Any]) -> FlowReading:
    """Give the profile that `gradwatch.sinks.record.pack_flow` packed.

    Args:
        layers: Layer names.
        packed: What was packed; None stands for NaN.
    """
    arrays: dict[str, Any] = {
        name: np.array(packed[name], dtype=np.float64) for name in ARRAYS if name in packed
    }
    return FlowReading(
        layers=tuple(layers),
        has_grad=~_flags(len(layers), packed["no_grad"]),
        frozen=_flags(len(layers), packed["frozen"]),
        **arrays,
    )


def _flags(count: int, places: Sequence[int]) -> BoolArray:
    flags = np.zeros(count, dtype=np.bool_)
    flags[list(places)] = True
    return flags


def _record(line: Mapping[str, Any], layers: Mapping[int, Sequence[str]]) -> StepRecord:
    flow = unpack_flow(layers[line["layers"]], line["flow"]) if "flow" in line else None
    return StepRecord(
        step=line["step"], log_step=line["log_step"], scalars=line["scalars"], flow=flow
    )


def _table(line: Mapping[str, Any]) -> Table:
    rows = tuple(tuple(row) for row in line["rows"])
    return Table(**{**line, "columns": tuple(line["columns"]), "rows": rows})


def _read_line(text: str, layers: dict[int, Sequence[str]]) -> tuple[str, Any]:
    """Give kind and content of a line; names of layers are kept for the records that follow."""
    try:
        line: dict[str, Any] = json.loads(text)
        _restore(line, line.pop("marks", {}))
        kind: str = line.pop("kind", "")
        if kind == "layers":
            layers[line["id"]] = line["names"]
        return kind, _content(kind, line, layers)
    except (ValueError, LookupError, TypeError, AttributeError):
        # What a crash or a full disk left of a line, or of the one that names its layers.
        return "unreadable", text


def _content(kind: str, line: dict[str, Any], layers: Mapping[int, Sequence[str]]) -> Any:  # noqa: ANN401 - as many kinds as lines
    if kind == "record":
        return _record(line, layers)
    if kind == "finding":
        return Finding(**line)
    return _table(line) if kind == "table" else line


def _restore(line: dict[str, Any], marks: Mapping[str, str]) -> None:
    for path, number in marks.items():
        *parents, last = path.split("/")[1:]
        place: Any = line
        for key in parents:
            place = place[int(key) if isinstance(place, list) else key]
        place[int(last) if isinstance(place, list) else last] = float(number)
