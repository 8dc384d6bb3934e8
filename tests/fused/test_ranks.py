"""Two processes try the same changes at once and come to one verdict."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).with_name("two_ranks.py")
ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 150


def find_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def start(rank: int, port: int, folder: Path) -> "subprocess.Popen[str]":
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(SCRIPT), str(folder)],
        env={**os.environ, **together, **own, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what each rank saw; a rank that hangs fails the tests."""
    folder, port = tmp_path_factory.mktemp("ranks"), find_port()
    processes = [start(rank, port, folder) for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


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
