"""Run records read back: what `RunRecordSink` wrote, crashed runs included."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradwatch.errors import ConfigurationError
from gradwatch.findings import Finding
from gradwatch.readings import FlowReading, StepRecord
from gradwatch.sinks.record import ARRAYS
from gradwatch.tables import Table

PLAIN = {"header": "headers", "footer": "footers"}


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


def read(path: str | Path) -> RunRecord:
    """Read a run record, also one whose run crashed in the middle of a line.

    Args:
        path: The file.

    Raises:
        ConfigurationError: If no line of the file is one of a run record.
    """
    lines, unreadable = _lines(Path(path))
    layers: dict[int, Sequence[str]] = {}
    run = RunRecord([], [], [], {}, [], unreadable)
    for line in lines:
        kind = line.pop("kind", "")
        if kind == "layers":
            layers[line["id"]] = line["names"]
        elif kind == "record":
            run.records.append(_record(line, layers))
        elif kind == "finding":
            run.findings.append(Finding(**line))
        elif kind == "table":
            run.tables[line["name"]] = _table(line)
        elif kind in PLAIN:
            getattr(run, PLAIN[kind]).append(line)
    if not (run.headers or run.records or run.findings):
        raise ConfigurationError(f"{path} is no run record: no line of it can be read as one")
    return run


def unpack_flow(layers: Sequence[str], packed: Mapping[str, Any]) -> FlowReading:
    """Give the profile that `gradwatch.sinks.record.pack_flow` packed.

    Args:
        layers: Layer names.
        packed: What was packed; None stands for NaN.
    """
    arrays: dict[str, Any] = {
        name: np.array(packed[name], dtype=np.float64) for name in ARRAYS if name in packed
    }
    index = np.arange(len(layers))
    return FlowReading(
        layers=tuple(layers),
        has_grad=~np.isin(index, packed["no_grad"]),
        frozen=np.isin(index, packed["frozen"]),
        **arrays,
    )


def _record(line: Mapping[str, Any], layers: Mapping[int, Sequence[str]]) -> StepRecord:
    flow = unpack_flow(layers[line["layers"]], line["flow"]) if "flow" in line else None
    return StepRecord(
        step=line["step"], log_step=line["log_step"], scalars=line["scalars"], flow=flow
    )


def _table(line: Mapping[str, Any]) -> Table:
    rows = tuple(tuple(row) for row in line["rows"])
    return Table(**{**line, "columns": tuple(line["columns"]), "rows": rows})


def _lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    lines = [_parse(text) for text in texts if text]
    whole = [line for line in lines if line is not None]
    return whole, len(lines) - len(whole)


def _parse(text: str) -> dict[str, Any] | None:
    try:
        line: dict[str, Any] = json.loads(text)
        _restore(line, line.pop("marks", {}))
    except (ValueError, LookupError, TypeError, AttributeError):
        # What a crash or a full disk left of a line.
        return None
    return line


def _restore(line: dict[str, Any], marks: Mapping[str, str]) -> None:
    for path, number in marks.items():
        *parents, last = path.split("/")[1:]
        place: Any = line
        for key in parents:
            place = place[int(key) if isinstance(place, list) else key]
        place[int(last) if isinstance(place, list) else last] = float(number)
