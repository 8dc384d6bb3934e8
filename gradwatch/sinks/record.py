"""The run record: one JSON object a line, readable after a crash at any line.

Lines, by ``kind``: ``header`` (versions, configuration, coverage), ``layers`` (the names of a
set of layers, once), ``record``, ``finding``, ``table``, ``footer`` (counts; absent after a crash).
JSON knows no NaN: in a profile null is NaN; anywhere else, and for Inf, ``marks`` tells. Norms are
kept to 5 significant digits: a record takes at most 4 kB with 75 layers and 100 kB with 2,000 where
all four families are recorded.
"""

import errno
import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.findings import Finding
from gradwatch.readings import Coverage, FloatArray, FlowReading, StepRecord
from gradwatch.sinks.claim import Claim, claim
from gradwatch.sinks.fuse import Fuse, tell
from gradwatch.tables import Table

FORMAT = 1
ARRAYS = ("grad_norm", "weight_norm", "update_ratio", "zero_fraction", "act_grad")
STRICT = {float, int, str, bool, type(None)}
PACKAGES = ("gradwatch", "torch", "lightning", "pytorch-lightning", "wandb", "numpy")


class RunRecordSink:
    """Append the run to a file, one flushed line at a time.

    A disk that is full or read-only is told once; training goes on. Where another live run
    writes to the file, this one takes one beside it and says so.

    Attributes:
        path: Where the record is.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        tell: Callable[[str], object] = tell,
    ) -> None:
        """Name the file; it is made by the first line, folders and all.

        Args:
            path: Where to write; a file that is there is appended to (a resumed run), unless
                another run that is alive writes to it: then to ``record-2.jsonl`` beside it.
            config: Options of the run, for the header; what JSON cannot say is written as text.
            tell: Is handed the one line about a failure, or about another place.
        """
        self.path = Path(path)
        self._tell = tell
        self._config = dict(config or {})
        self._fuse = Fuse(f"gradwatch: the run record {self.path}", tell)
        self._claim: Claim | None = None
        self._closed = False
        self._layers: dict[tuple[str, ...], int] = {}
        # Where a line of names is cut off, those of the run before must not stand for them.
        self._first_id = int.from_bytes(os.urandom(4), "big")
        self._counts = {"records": 0, "findings": 0}

    def start(self, coverage: Sequence[Coverage]) -> None:
        """Write the header."""
        self._put("header", {**self._header(), "coverage": [asdict(part) for part in coverage]})

    def record(self, record: StepRecord) -> None:
        """Write a record, and the names of its layers where they are new."""
        line: dict[str, Any] = {"step": record.step, "log_step": record.log_step}
        line["scalars"] = dict(record.scalars)
        if record.flow is not None:
            line["layers"] = self._layer_id(record.flow.layers)
            line["flow"] = pack_flow(record.flow)
        self._put("record", line)
        self._counts["records"] += 1

    def finding(self, finding: Finding) -> None:
        """Write a finding."""
        self._put("finding", finding.as_dict())
        self._counts["findings"] += 1

    def table(self, table: Table) -> None:
        """Write a table."""
        self._put("table", asdict(table))

    def close(self) -> None:
        """Write the footer and close the file; nothing where nothing was written."""
        if self._claim is None or self._closed:
            return
        self._put("footer", {**self._counts, "time": _now()})
        self._closed = True
        self._claim.release()

    def _header(self) -> dict[str, Any]:
        versions = {"python": platform.python_version(), **_versions()}
        return {"format": FORMAT, "time": _now(), "versions": versions, "config": self._config}

    def _layer_id(self, layers: tuple[str, ...]) -> int:
        if layers not in self._layers:
            self._layers[layers] = self._first_id + len(self._layers)
            self._put("layers", {"id": self._layers[layers], "names": list(layers)})
        return self._layers[layers]

    def _put(self, kind: str, line: Mapping[str, Any]) -> None:
        self._fuse.run(lambda: self._append({"kind": kind, **line}))

    def _append(self, line: dict[str, Any]) -> None:
        marks: dict[str, str] = {}
        plain = _strict(line, "", marks)
        if marks:
            plain["marks"] = marks
        text = json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        # Half a character, as in a path that is no UTF-8: escaped, it is JSON and comes back.
        written = f"{text}\n".encode(errors="backslashreplace")
        if self._open().write(written) != len(written):
            raise OSError(errno.ENOSPC, "the last line was cut off", str(self.path))

    def _open(self) -> FileIO:
        if self._claim is None:
            self._claim = claim(self.path)
            torn = _ends_torn(self._claim.path)
            # The last line of a run that crashed must not swallow the first of this one.
            self._claim.file.write(b"\n" if torn else b"")
            self._move(self._claim.path)
        return self._claim.file

    def _move(self, path: Path) -> None:
        if path != self.path:
            self._tell(f"gradwatch: another run writes to {self.path}; this one's is {path}")
            self.path = path


def pack_flow(flow: FlowReading) -> dict[str, Any]:
    """Give a profile as lists: numbers to 5 digits, flags as the indices they hold for.

    Args:
        flow: Profile of a step.
    """
    packed: dict[str, Any] = {
        name: _round(values) for name in ARRAYS if (values := getattr(flow, name)) is not None
    }
    packed["no_grad"] = np.flatnonzero(~flow.has_grad).tolist()
    packed["frozen"] = np.flatnonzero(flow.frozen).tolist()
    return packed


def _round(values: FloatArray) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.5g}") for value in values.tolist()]


def _strict(value: Any, path: str, marks: dict[str, str]) -> Any:  # noqa: ANN401 - any JSON value
    """Copy a value as strict JSON; note each non-finite number under its path."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item, f"{path}/{key}", marks) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if _is_strict(value):
            return value
        return [_strict(item, f"{path}/{i}", marks) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        marks[path] = str(value)
        return None
    if isinstance(value, np.generic):
        return _strict(value.item(), path, marks)
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def _is_strict(values: Sequence[Any]) -> bool:
    """Tell of a long list in one pass what `_strict` would find item by item."""
    kinds = set(map(type, values))
    numbers = (value for value in values if type(value) is float)
    # One NaN or Inf makes the sum one.
    return kinds <= STRICT and (float not in kinds or math.isfinite(sum(numbers)))


def _ends_torn(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _versions() -> dict[str, str]:
    versions = {package: _version(package) for package in PACKAGES}
    return {package: version for package, version in versions.items() if version}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
