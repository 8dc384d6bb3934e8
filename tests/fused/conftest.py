"""What runs kernels is collected in a process that interprets them: see test_interpreted_alone."""

import os
import sys

import pytest
import torch

from gradwatch.fused import bench
from tests.fused.lab import CLOCK

collect_ignore = [] if os.environ.get("GRADWATCH_TRIAL_LEG") else ["interpreted"]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trials measure the lab's time."""
    monkeypatch.setattr(bench, "time", CLOCK)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Forget what other tests compiled in this process: a trial looks at less beside it."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
