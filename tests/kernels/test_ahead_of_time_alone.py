"""The ahead of time leg of the kernels' tests; a file a leg, so that they share the workers."""

import pytest

from tests.kernels.legs import failure_of

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.timeout(1500)
def test_the_ahead_of_time_passes() -> None:
    failure = failure_of("ahead_of_time")
    assert not failure, failure
