"""Each leg of the kernels' tests, in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INTERPRETED = {"interpreter": "1", "ahead_of_time": "0", "torch_leg": "1"}

BLOCKED = """
import sys
sys.modules["triton"] = None
import gradwatch.kernels as kernels
print(kernels.missing("cuda"))
try:
    from gradwatch.kernels.norm import norm
except kernels.KernelUnavailableError as error:
    print(error)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("leg", INTERPRETED)
def test_leg_passes(leg: str) -> None:
    environment = os.environ | {
        "GRADWATCH_KERNEL_LEG": leg,
        "TRITON_INTERPRET": INTERPRETED[leg],
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / leg)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{leg} leg failed\n{done.stdout}\n{done.stderr}"


def test_without_triton_the_package_imports_and_a_kernel_says_how_to_get_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.count("Triton is not installed") == 2
    assert done.stdout.count("pip install triton") == 2
