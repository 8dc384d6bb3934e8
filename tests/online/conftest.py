"""Processes of their own that reach the stand-in for W&B's server, and nothing else."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.wandb_server import WandbServer

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

Start = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    with WandbServer() as running:
        yield running


@pytest.fixture(scope="module")
def start(server: WandbServer, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start this interpreter in the repository's root, with W&B led to the stand-in."""
    folder = tmp_path_factory.mktemp("wandb")
    clean = {name: own for name, own in os.environ.items() if not name.startswith("WANDB_")}

    def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        environment = {**clean, **server.environment(folder), "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environment,
            timeout=300,
        )

    return run
