"""The interpreter, a little quicker."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from tests.kernels.conftest import _patch_language_once

collect_ignore = [] if os.environ.get("GRADWATCH_TRIAL_LEG") == "liger" else ["liger"]


@pytest.fixture(autouse=True, scope="session")
def _quick_interpreter() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        _patch_language_once(patch)
        yield


@pytest.fixture(autouse=True)
def _clock() -> None:
    """Measure real time: interpreted kernels are hundreds of times slower."""


@pytest.fixture(autouse=True)
def _silent_lanes() -> Iterator[None]:
    """Let dead lanes compute inf * 0 without a warning, as a GPU does."""
    with np.errstate(all="ignore"):
        yield
