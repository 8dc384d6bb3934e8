"""A record tells its runs apart, whole or torn, resumed or begun anew."""

from pathlib import Path

import pytest

from gradwatch import ConfigurationError
from gradwatch.report.story import read_story
from tests.report.records import RECORD, fault, step, write, write_long

INF = float("inf")


def test_a_whole_run_tells_its_steps_and_that_it_ended() -> None:
    write([step(0), step(5), fault(7), step(9)])
    story = read_story(RECORD)
    assert (story.first_step, story.last_step, story.records) == (0, 9, 3)
    assert [finding.step for finding in story.findings] == [7]
    assert story.ended
    assert story.first_bad_step is None


def test_a_run_that_goes_on_or_crashed_has_not_ended() -> None:
    write([step(0)], ends=False)
    assert not read_story(RECORD).ended


def test_a_line_that_a_crash_cut_off_is_counted_and_the_rest_is_read() -> None:
    write([step(0), step(1), step(2)], ends=False)
    whole = RECORD.read_bytes()
    RECORD.write_bytes(whole[:-40])
    story = read_story(RECORD)
    assert (story.records, story.unreadable) == (2, 1)


def test_a_record_whose_layer_names_are_lost_costs_only_its_own_lines() -> None:
    write([step(0), fault(1)])
    lines = RECORD.read_text().splitlines(keepends=True)
    RECORD.write_text("".join(line for line in lines if '"kind":"layers"' not in line))
    story = read_story(RECORD)
    assert (story.records, story.unreadable, len(story.findings)) == (0, 1, 1)


def test_a_resumed_run_is_one_run() -> None:
    write([step(0), step(10)], ends=False)
    write([step(6), step(20)])
    story = read_story(RECORD)
    assert (story.runs, story.records, story.starts) == (1, 4, [0, 6])
    assert story.ended


def test_a_run_that_begins_at_the_first_step_again_is_another_one() -> None:
    write([step(0), fault(1, "head"), step(10)])
    write([step(0), step(1)])
    last, first = read_story(RECORD), read_story(RECORD, run=1)
    assert (last.number, last.runs, last.last_step, last.findings) == (2, 2, 1, [])
    assert (first.number, first.runs, first.last_step) == (1, 2, 10)
    assert [finding.layer for finding in first.findings] == ["head"]


def test_a_start_that_recorded_nothing_yet_does_not_hide_the_run_before() -> None:
    write([step(0), step(1)])
    write([], ends=False)
    story = read_story(RECORD)
    assert (story.records, len(story.headers), story.ended) == (2, 2, "")


def test_a_run_that_is_not_there_is_refused_with_those_that_are() -> None:
    write([step(0)])
    with pytest.raises(ConfigurationError, match=r"holds 1 run.*no run 4: choose 1 to 1"):
        read_story(RECORD, run=4)


@pytest.mark.parametrize("content", ["", "5\n[]\nnull\n", "not a record\n"])
def test_another_file_is_refused(content: str) -> None:
    path = Path("other.jsonl")
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"other\.jsonl is no run record"):
        read_story(path)


def test_the_first_non_finite_step_is_the_earlier_of_told_and_recorded() -> None:
    bad = fault(4, rule="non_finite", severity="error")
    write([step(0), bad, step(4, (1, INF, 1, 1)), step(8, (1, INF, 1, 1))])
    assert read_story(RECORD).first_bad_step == 4
    write([step(0), step(3, (1, 1, INF, 1)), bad])
    assert read_story(RECORD).first_bad_step == 3


def test_reading_a_long_record_says_how_far_it_is() -> None:
    write_long(RECORD, steps=800, kinds=5)
    said: list[float] = []
    read_story(RECORD, progress=said.append)
    assert said == sorted(said)
    assert len(said) > 2
    assert said[-1] == 1.0
