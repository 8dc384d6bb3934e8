"""A long run of a deep model, with everything there is to show, is still a small file."""

from gradwatch.report import write_report
from tests.report.parsed import Page
from tests.report.records import RECORD, write_long


def test_a_long_run_of_a_deep_model_stays_under_a_megabyte_and_keeps_its_mark() -> None:
    write_long(RECORD)
    path = write_report(RECORD)
    assert path.stat().st_size < 1_000_000
    page = Page(path.read_text())
    assert "0 to 9,999, 10,000 of them recorded" in page.text
    assert "First non-finite step 5,000" in page.text
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 2 * 10
