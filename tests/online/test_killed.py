"""The W&B service dies in the middle of a run."""

import json
import sys

import pytest

from tests.online.conftest import HERE, Start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the service in /proc")


def test_training_ends_with_the_same_weights_and_it_is_told_once(start: Start) -> None:
    done = start(HERE / "killed_service.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["killed"] == 1
    assert told["differences"] == []
    assert told["records"] == 14
    assert told["findings"] == [1, 5, 8, 12]
    lines = [line for line in done.stderr.splitlines() if line.startswith("gradwatch: ")]
    assert len(lines) == 1
    assert "WandbLogger is switched off, training goes on: ConnectionResetError" in lines[0]
