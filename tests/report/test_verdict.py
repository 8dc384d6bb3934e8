"""The verdict: one sentence that is true of what the record holds."""

from gradwatch import Finding, StepRecord
from gradwatch.health import Verdict
from gradwatch.report.story import read_story
from gradwatch.report.verdict import group, judge
from tests.report.records import RECORD, fault, step, write

INF = float("inf")


def verdict_of(*told: StepRecord | Finding) -> Verdict:
    write(told)
    return judge(read_story(RECORD))


def test_a_run_without_findings_is_healthy() -> None:
    assert verdict_of(step(0), step(1))[:2] == ("healthy", "Healthy")


def test_information_alone_leaves_a_run_healthy() -> None:
    assert verdict_of(step(0), fault(0, severity="info")).state == "healthy"


def test_the_gravest_finding_is_the_verdict_and_the_others_are_counted() -> None:
    bad = fault(9, "head", rule="non_finite", severity="error", summary="NaN born in head")
    verdict = verdict_of(step(0), fault(2), fault(3), bad, fault(9, "embed"))
    assert verdict.state == "error"
    assert verdict.worst_layer == "head"
    expected = "Non-finite at step 9 in head: NaN born in head. (2 more findings below)"
    assert verdict.sentence == expected


def test_among_equals_the_first_to_go_wrong_is_the_worst() -> None:
    verdict = verdict_of(step(0), fault(2, "head"), fault(4, "embed"))
    assert (verdict.state, verdict.worst_layer) == ("warning", "head")


def test_a_record_without_a_step_is_not_called_healthy() -> None:
    assert verdict_of().state == "empty"


def test_steps_that_a_scaler_skipped_are_told_and_leave_a_run_healthy() -> None:
    verdict = verdict_of(step(0), step(1, (1, INF, 1, 1), grad__skipped=1.0))
    assert verdict.state == "healthy"
    assert "the first at step 1" in verdict.sentence


def test_a_non_finite_gradient_that_nobody_told_of_is_not_called_healthy() -> None:
    verdict = verdict_of(step(0), step(1, (1, INF, 1, 1)))
    assert verdict.state == "warning"
    assert "non-finite at step 1" in verdict.sentence


def test_what_repeats_itself_is_one_row_with_its_count() -> None:
    rows = group([fault(2), fault(50), fault(3, "head"), fault(99)])
    assert [(row.shown.layer, row.times, row.last_step) for row in rows] == [
        ("blocks.1", 3, 99),
        ("head", 1, 3),
    ]
    assert rows[0].shown.step == 2


def test_of_one_rule_in_one_layer_the_gravest_is_shown() -> None:
    (row,) = group([fault(2), fault(5, severity="error")])
    assert (row.shown.step, row.times) == (5, 2)
