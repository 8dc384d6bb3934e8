"""Run one leg of the kernels' tests in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INTERPRETED = {"interpreter": "1", "ahead_of_time": "0", "torch_leg": "1"}


def failure_of(leg: str) -> str:
    """Give what a failing leg printed, nothing where it passed."""
    environment = os.environ | {
        "GRADWATCH_KERNEL_LEG": leg,
        "TRITON_INTERPRET": INTERPRETED[leg],
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / leg)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return f"{leg} leg failed\n{done.stdout}\n{done.stderr}" if done.returncode else ""
