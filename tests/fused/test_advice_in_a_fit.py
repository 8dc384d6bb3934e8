"""What is told of a fit in which fused layers are only advised."""

from typing import Any

import pytest

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from tests.fused.lab import QUICK, Offers, SlowNorm, quick
from tests.kit import Calm, build, fit


class Slow(Calm):
    """Calm, with a layer norm that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = SlowNorm(16)


@pytest.mark.parametrize(("least", "told"), [(1, ["1 change is worth a trial"]), (10**9, [])])
def test_it_is_told_only_where_something_is_worth_a_trial(least: int, told: list[str]) -> None:
    sink = MemorySink()
    chosen: dict[str, Any] = {
        **QUICK, "mode": "advise", "after_steps": 1, "min_elements": least,
        "providers": (Offers(SlowNorm, quick),),
    }  # fmt: skip
    module = build(Slow)
    fit(module, [FusedBackward(FusedBackwardOptions(**chosen), sinks=[sink])])
    assert [each.summary for each in sink.findings if each.rule == "fused_backward"] == told
    assert len(sink.tables) == len(told)
    assert "forward" not in vars(module.norm)
