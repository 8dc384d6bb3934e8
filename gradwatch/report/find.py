"""Which run record is meant, and where its report goes."""

import re
from collections.abc import Iterator
from pathlib import Path

from gradwatch.errors import ConfigurationError
from gradwatch.host import RUNS

# Of runs that were alive at once in one folder, the second one's bears a number.
RECORD = re.compile(r"record(-\d+)?\.jsonl")
SUFFIX = ".jsonl"
REPORT = "report.html"


def find_records(place: str | Path) -> list[Path]:
    """Give the run records at a place, the one written to last first.

    Args:
        place: A run record; the folder it lies in; or any folder above, such as the one a
            Lightning logger writes to.

    Raises:
        ConfigurationError: If there is none.
    """
    place = Path(place)
    if place.is_file():
        return [place]
    if not place.exists():
        raise ConfigurationError(f"{place} does not exist: name the folder the run logged to")
    found = set(_records(place))
    if not found:
        raise ConfigurationError(
            f"no run record in or below {place}: gradwatch writes {RUNS}/record.jsonl into the "
            "folder the run logs to, unless record=False is set; name that folder or the file "
            "itself"
        )
    return sorted(found, key=lambda path: (path.stat().st_mtime, str(path)), reverse=True)


def _records(place: Path) -> Iterator[Path]:
    for path in (*place.glob(f"*{SUFFIX}"), *place.rglob(f"{RUNS}/*{SUFFIX}")):
        if RECORD.fullmatch(path.name):
            yield path


def report_path(record: Path, output: str | Path | None) -> Path:
    """Say where the report of a run record is written.

    Args:
        record: The run record.
        output: What the user wants: a file, a folder for it, or None: beside the record.

    Returns:
        Where that is: ``report.html``, of ``record-2.jsonl`` ``report-2.html``.
    """
    known = RECORD.fullmatch(record.name)
    name = f"report{known[1]}.html" if known and known[1] else REPORT
    if output is None:
        return record.with_name(name)
    return Path(output) / name if Path(output).is_dir() else Path(output)
