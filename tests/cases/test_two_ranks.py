"""A NaN that one of two ranks is handed: both do the same, one of them speaks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit import differences
from tests.two_processes_kit import run_two

SCRIPT = Path(__file__).with_name("one_of_two.py")
PATIENCE_SECONDS = 240


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what each rank came to; one that hangs fails the tests."""
    return run_two(SCRIPT, tmp_path_factory.mktemp("two_ranks"), PATIENCE_SECONDS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("policy", "steps"), [("raise", 1), ("skip", 3)])
def test_both_ranks_decide_alike_and_rank_0_names_the_other_ones_sample(
    policy: str, steps: int, ranks: list[dict[str, Any]], note: Callable[[str, str, str], None]
) -> None:
    first, second = (rank[policy] for rank in ranks)
    assert [first["steps"], second["steps"]] == [steps, steps]
    assert first["error"] == second["error"]
    assert differences(first["weights"], second["weights"]) == []
    assert all(bool(each.isfinite().all()) for each in first["weights"].values())
    assert bool(first["error"]) == (policy == "raise")
    assert second["told"] == []
    (told,) = first["told"]
    assert "<input>" in told
    assert "at step 1 on rank 1" in told
    note("d14", "<input> on rank 1, told once, by rank 0", told)
