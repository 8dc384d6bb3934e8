"""Two runs that were alive in one folder: the newer is taken, said, and has its own report."""

import os
from pathlib import Path

import pytest

from gradwatch.report.command import run_report
from gradwatch.report.find import find_records
from tests.report.records import RECORD, fault, step, write

SECOND = RECORD.with_name("record-2.jsonl")


@pytest.fixture(autouse=True)
def _two_runs() -> None:
    write([step(0)])
    write([step(0), fault(0, "late.layer")], SECOND)
    os.utime(RECORD, (1, 1))


def test_the_newer_one_is_taken_and_the_other_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_report(RECORD.parent.parent) == 0
    told = capsys.readouterr()
    assert told.out == f"{RECORD.with_name('report-2.html')}\n"
    assert f"2 run records; the newest is taken: {SECOND}; not taken:\n  {RECORD}" in told.err
    page = Path(told.out.strip()).read_text(encoding="utf-8")
    assert "late.layer" in page
    assert "<title>Needs a look: logs · record-2 – gradwatch</title>" in page


def test_each_has_a_report_of_its_own() -> None:
    for record in (RECORD, SECOND):
        assert run_report(record) == 0
    assert {path.name for path in RECORD.parent.glob("*.html")} == {"report.html", "report-2.html"}


def test_other_files_beside_a_record_are_none() -> None:
    RECORD.with_name("record-notes.jsonl").write_text("{}\n")
    assert find_records(".") == [SECOND, RECORD]
