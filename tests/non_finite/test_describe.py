"""A blame becomes one line a person understands, with the numbers under it."""

import pytest

from gradwatch.findings import INPUT, LOSS, OPTIMIZER
from gradwatch.non_finite.blame import NO_REPLAY, NOT_RESTORABLE, ONLY_COMPILED, Blame
from gradwatch.non_finite.describe import finding_of, summary_of
from gradwatch.non_finite.verdicts import meaning_of


def make_blame(**changes: object) -> Blame:
    plain: dict[str, object] = {
        "place": "encoder.layers.7.attn",
        "verdict": "reproducible",
        "kind": "NaN",
        "phase": "backward",
        "operation": "backward of aten::_softmax",
        "batch_index": 17,
        "micro_batch": 1,
        "batch_size": 32,
    }
    return Blame(**{**plain, **changes})  # type: ignore[arg-type]


def test_the_summary_names_layer_operation_call_and_neighbours() -> None:
    blame = make_blame(call=3, calls=6, after="block.a", before="block.b")
    assert summary_of(blame) == (
        "NaN born in encoder.layers.7.attn, backward of aten::_softmax "
        "(call index 3 of 6; after block.a, before block.b)"
    )


def test_of_a_single_call_no_number_is_told() -> None:
    assert summary_of(make_blame()).endswith("backward of aten::_softmax")


@pytest.mark.parametrize(
    ("samples", "told"),
    [((3,), "sample 3"), ((1, 2), "samples 1, 2"), (tuple(range(12)), "6, 7 and 4 more")],
)
def test_a_bad_input_is_told_with_its_samples(samples: tuple[int, ...], told: str) -> None:
    blame = make_blame(place=INPUT, batch_path="batch['x']", samples=samples)
    assert summary_of(blame).startswith("NaN came in with batch['x'] (sample")
    assert told in summary_of(blame)


def test_a_bad_weight_is_told_to_have_been_bad_before() -> None:
    blame = make_blame(place=OPTIMIZER, evidence={"parameter": "head.weight"})
    assert summary_of(blame) == "NaN was in head.weight before the step began"


def test_the_evidence_counts_micro_batches_from_one_and_all_samples_in_a_word() -> None:
    blame = make_blame(samples=tuple(range(32)), dtype="float16", max_input=4084.0)
    evidence = finding_of(blame, 5, micro_batches=4).evidence
    assert evidence["micro-batch"] == "2 of 4"
    assert (evidence["batch"], evidence["batch size"]) == (17, 32)
    assert (evidence["samples"], evidence["max|input|"]) == ("all 32", 4084.0)


def test_what_is_unknown_is_left_out() -> None:
    evidence = finding_of(make_blame(), 5).evidence
    assert not {"micro-batch", "samples", "max|input|", "line", "dtype"} & set(evidence)


def test_a_hint_goes_before_the_general_remedy() -> None:
    assert finding_of(make_blame(hint="mask the INPUT"), 5).remedy == "mask the INPUT"
    assert "guard the loss" in finding_of(make_blame(place=LOSS), 5).remedy


@pytest.mark.parametrize("verdict", [NOT_RESTORABLE, ONLY_COMPILED, f"{NO_REPLAY}: out of memory"])
def test_what_the_replay_could_not_show_is_said(verdict: str) -> None:
    finding = finding_of(make_blame(kind="", operation="", verdict=verdict), 5)
    assert verdict in f"{finding.cause} {finding.summary} {finding.evidence['replay']}"
    assert finding.remedy == meaning_of(verdict).next_step
    assert finding.cause


def test_a_known_cause_is_told_instead() -> None:
    finding = finding_of(make_blame(), 5, cause="a row that is all padding", rank=1)
    assert (finding.cause, finding.rank, finding.severity) == (
        "a row that is all padding",
        1,
        "error",
    )
