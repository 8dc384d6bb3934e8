"""The package without Triton: it imports, and a kernel says how to get it."""

import os
import subprocess
import sys

from tests.kernels.legs import ROOT

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


def test_without_triton_the_package_imports_and_a_kernel_says_how_to_get_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.count("Triton is not installed") == 2
    assert done.stdout.count("pip install triton") == 2
