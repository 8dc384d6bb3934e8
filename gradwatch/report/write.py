"""From a run's folder to its report."""

import contextlib
from pathlib import Path

from gradwatch.errors import ConfigurationError
from gradwatch.report.find import find_records, report_path
from gradwatch.report.story import Progress, read_story


def write_report(
    run_dir: str | Path,
    output: str | Path | None = None,
    *,
    run: int | None = None,
    progress: Progress = lambda _: None,
) -> Path:
    """Write a run's report: one HTML file that needs nothing beside it, and no network.

    The run may still be going, or have crashed. A report that is there is replaced as a whole,
    so that a browser never sees half of one.

    Args:
        run_dir: The folder the run logged to, any folder above it, or its run record. Of
            several records the one written to last is taken.
        output: File to write, or a folder for it; None is ``report.html`` beside the record.
        run: Which run of a record that several runs were appended to, from 1; None is the
            last.
        progress: Is handed the share of the record that is read, from 0 to 1.

    Returns:
        The file that was written.

    Raises:
        ConfigurationError: If there is no run record, it has no such run, or the report
            cannot be written there.
    """
    from gradwatch.report.page import render

    record = find_records(run_dir)[0]
    text = render(read_story(record, run=run, progress=progress))
    path = report_path(record, output)
    try:
        _replace(path, text)
    except OSError as error:
        raise ConfigurationError(
            f"the report cannot be written to {path} ({error.strerror}): choose another place"
        ) from error
    return path


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
