"""Trials of kernels, which the interpreter runs on a CPU in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("leg", "folder", "package"),
    [("bundled", "interpreted", "triton"), ("liger", "interpreted/liger", "liger_kernel")],
)
def test_trials_with_interpreted_kernels_pass(leg: str, folder: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    environment = os.environ | {
        "GRADWATCH_TRIAL_LEG": leg,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, str(HERE / folder)],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
