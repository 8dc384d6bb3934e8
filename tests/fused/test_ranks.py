"""Two processes try the same changes at once and come to one verdict."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.two_processes_kit import run_two

SCRIPT = Path(__file__).with_name("two_ranks.py")
PATIENCE_SECONDS = 150


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what each rank saw; a rank that hangs fails the tests."""
    return run_two(SCRIPT, tmp_path_factory.mktemp("ranks"), PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("scene", "kept", "verdict", "reason"),
    [
        ("right", [["norm", "LayerNorm by hand", "lab"]], "kept", "less time"),
        ("wrong", [], "rejected", "its output is 1.0e-02 off"),
        ("slow", [], "rolled back", "more time"),
        ("raises", [], "rolled back", "the step raised RuntimeError: out of registers"),
    ],
)
def test_what_one_rank_finds_holds_for_both(
    scene: str, kept: Any, verdict: str, reason: str, ranks: list[dict[str, Any]]
) -> None:
    first, second = (rank[scene] for rank in ranks)
    assert first["kept"] == second["kept"] == kept
    told = first["told"][0]
    assert told[0] == verdict
    assert reason in told[1]
    assert second["told"] in ([], first["told"])


@pytest.mark.parametrize("scene", ["right", "wrong", "slow", "raises"])
def test_the_ranks_go_on_with_the_same_weights(scene: str, ranks: list[dict[str, Any]]) -> None:
    pairs = zip(*(rank[scene]["weights"] for rank in ranks), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
