"""What ``gradwatch report`` does: write the report, and say where and of what."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradwatch.errors import ConfigurationError
from gradwatch.report.find import find_records
from gradwatch.report.story import Progress
from gradwatch.report.write import write_report

DONE, BAD_USE = 0, 2
MOST_NAMED = 5


def run_report(run_dir: Path, output: Path | None = None, run: int | None = None) -> int:
    """Write a report and print its path; what else is to say goes to the standard error.

    Args:
        run_dir: As for `write_report`.
        output: As for `write_report`.
        run: As for `write_report`.

    Returns:
        0 where it was written, 2 where it could not be.
    """
    try:
        records = find_records(run_dir)
        if len(records) > 1:
            sys.stderr.write(_choice(records))
        with _progress_bar() as progress:
            path = write_report(records[0], output, run=run, progress=progress)
    except (ConfigurationError, OSError) as error:
        sys.stderr.write(f"gradwatch: {error}\n")
        return BAD_USE
    sys.stdout.write(f"{path}\n")
    return DONE


def _choice(records: list[Path]) -> str:
    others = [f"\n  {path}" for path in records[1 : MOST_NAMED + 1]]
    more = len(records) - 1 - len(others)
    rest = f"\n  … and {more} more" if more else ""
    return (
        f"gradwatch: {len(records)} run records; the newest is taken: {records[0]}; not taken:"
        f"{''.join(others)}{rest}\n"
    )


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """Show on a terminal how far the reading is, and nothing once it is done."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading the run record", total=1.0)
        yield lambda share: bar.update(task, completed=share)
