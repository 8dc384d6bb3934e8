"""Trials of the bundled kernels, which the interpreter runs on a CPU in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.timeout(900)
def test_trials_with_interpreted_kernels_pass() -> None:
    environment = os.environ | {
        "GRADWATCH_TRIAL_LEG": "1",
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, str(HERE / "interpreted")],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
