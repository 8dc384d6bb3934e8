"""The interpreter leg of the kernels' tests; a file a leg, so that they share the workers."""

import pytest

from tests.kernels.legs import failure_of

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.timeout(1500)
def test_the_interpreter_passes() -> None:
    failure = failure_of("interpreter")
    assert not failure, failure
