"""Run one script as two processes that train together."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]


def find_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def start(script: Path, rank: int, port: int, folder: Path) -> "subprocess.Popen[str]":
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), str(folder)],
        env={**os.environ, **together, **own, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_two(script: Path, folder: Path, patience_seconds: float) -> list[dict[str, Any]]:
    """Give what each rank saved as ``RANK.pt``; a rank that hangs is killed, and that raises."""
    port = find_port()
    processes = [start(script, rank, port, folder) for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=patience_seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]
