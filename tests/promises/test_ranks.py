"""Two processes that train together decide together, and watching them changes no bit."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit import differences
from tests.two_processes_kit import run_two

SCRIPT = Path(__file__).with_name("two_processes.py")
PATIENCE_SECONDS = 240


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what each rank saw; a rank that hangs fails the tests."""
    return run_two(SCRIPT, tmp_path_factory.mktemp("ranks"), PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("bare", "watched"), [("bare", "watched"), ("accumulated", "accumulated and watched")]
)
def test_watching_two_ranks_changes_no_bit(
    bare: str, watched: str, ranks: list[dict[str, Any]]
) -> None:
    for rank in ranks:
        assert differences(rank[bare], rank[watched]["run"]) == []
        assert rank[watched]["findings"] == []
    assert differences(ranks[0][bare], ranks[1][bare]) != []


def test_only_rank_0_tells(ranks: list[dict[str, Any]]) -> None:
    assert [rank["watched"]["records"] for rank in ranks] == [14, 0]


def test_all_ranks_skip_where_one_of_them_saw_a_bad_sample(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert differences(rank["by hand"], rank["skipped"]["run"]) == []


def test_the_guilty_rank_and_its_sample_are_named_once_on_rank_0(
    ranks: list[dict[str, Any]],
) -> None:
    first, second = (rank["skipped"] for rank in ranks)
    assert first["findings"] == second["findings"]
    assert first["told"] == ["non_finite"] * 2
    assert second["told"] == []
    text = "\n".join(first["findings"][0])
    assert "<input>" in text
    assert "at step 1 on rank 1:" in text
    assert "sample 2" in text


def test_all_ranks_raise_alike_and_keep_their_weights(ranks: list[dict[str, Any]]) -> None:
    errors = [rank["raised"]["error"].partition("intact")[0] for rank in ranks]
    assert errors[0] == errors[1]
    assert "stopped before the update" in errors[0]
    for rank in ranks:
        assert differences(rank["one step"], rank["raised"]["weights"]) == []


def test_the_bundle_holds_the_batch_of_the_guilty_rank(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["raised"]["bad_in_bundle"] == [2]


def test_norms_of_sharded_gradients_are_those_of_the_whole_on_every_rank(
    ranks: list[dict[str, Any]],
) -> None:
    for rank in ranks:
        seen = rank["sharded"]
        assert seen["kinds"] == {"DTensor"}
        for measured, whole in zip(seen["measured"], seen["whole"], strict=True):
            assert measured == pytest.approx(whole, rel=1e-5)
            assert min(whole) > 0


def test_a_callback_without_options_trains_on_two_ranks_and_one_writes_the_run_record(
    ranks: list[dict[str, Any]],
) -> None:
    assert [rank["as it comes"] for rank in ranks] == [14, 0]


def test_a_step_with_a_collective_is_replayed_in_lockstep(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["collective"] for rank in ranks)
    assert first == second
    assert len(first) == 1
    assert "on rank 1" in first[0]
    assert "<input>" in first[0]
