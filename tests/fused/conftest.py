"""What runs kernels is collected in a process that interprets them: see test_interpreted_alone."""

import os

import pytest

from gradwatch.fused import bench
from tests.fused.lab import CLOCK

collect_ignore = [] if os.environ.get("GRADWATCH_TRIAL_LEG") else ["interpreted"]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trials measure the lab's time."""
    monkeypatch.setattr(bench, "time", CLOCK)
