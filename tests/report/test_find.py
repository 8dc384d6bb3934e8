"""Whatever folder of a run is named, its record is found."""

import os
from pathlib import Path

import pytest

from gradwatch import ConfigurationError
from gradwatch.report.find import find_records, report_path
from tests.report.records import RECORD, step, write


@pytest.mark.parametrize(
    "place", [RECORD, RECORD.parent, RECORD.parent.parent, Path()], ids=["file", "own", "log", "up"]
)
def test_a_record_is_found_from(place: Path) -> None:
    write([step(0)])
    assert [path.absolute() for path in find_records(place)] == [RECORD.absolute()]


def test_of_several_records_the_one_written_to_last_comes_first() -> None:
    old = write([step(0)], Path("version_1/gradwatch_runs/record.jsonl"))
    new = write([step(0)], Path("version_0/gradwatch_runs/record.jsonl"))
    os.utime(old, (1, 1))
    assert find_records(".") == [new, old]


def test_a_file_of_the_same_name_elsewhere_is_no_run_record() -> None:
    Path("data").mkdir()
    Path("data/record.jsonl").write_text("{}\n")
    with pytest.raises(ConfigurationError, match=r"no run record in or below \..*record=False"):
        find_records(".")


def test_a_folder_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="runs/mine does not exist"):
        find_records("runs/mine")


def test_a_report_goes_beside_its_record_or_where_it_is_wanted() -> None:
    assert report_path(RECORD, None) == RECORD.with_name("report.html")
    assert report_path(RECORD, "mine.html") == Path("mine.html")
    assert report_path(RECORD, Path.cwd()) == Path.cwd() / "report.html"
