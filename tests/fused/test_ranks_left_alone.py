"""With two processes: a layout that DDP would scramble and sharded weights are left alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.two_processes_kit import run_two

SCRIPT = Path(__file__).with_name("two_ranks_left_alone.py")
PATIENCE_SECONDS = 240


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what each rank saw; a rank that hangs fails the tests."""
    return run_two(SCRIPT, tmp_path_factory.mktemp("ranks"), PATIENCE_SECONDS)


def test_channels_last_is_refused_in_data_parallel_training(ranks: list[dict[str, Any]]) -> None:
    ((change, verdict, reason),) = ranks[0]["laid out"]["rows"]
    assert (change, verdict) == ("channels_last", "refused")
    assert reason.startswith("a process group sends gradients in buckets")
    assert "model.to(memory_format=torch.channels_last)" in reason


def test_sharded_weights_are_refused_with_the_reason(ranks: list[dict[str, Any]]) -> None:
    (told,) = ranks[0]["sharded"]["told"]
    assert told.startswith("no fused layer was tried: its parameters are sharded (FSDP")
    assert "DistributedDataParallel" in told
    assert ranks[0]["sharded"]["others"] == []


@pytest.mark.parametrize("scene", ["laid out", "sharded"])
def test_training_does_not_notice_the_refusal(scene: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        own = rank[scene]
        pairs = zip(own["weights"], own["stock"], ranks[0][scene]["stock"], strict=True)
        assert all(torch.equal(a, b) and torch.equal(b, c) for a, b, c in pairs)
