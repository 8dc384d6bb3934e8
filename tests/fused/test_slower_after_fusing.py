"""A change whose own functions are faster while the step is slower is named as such."""

from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from tests.fused.lab import CLOCK, QUICK, Net, Offers, SlowNorm, named, quick, run_trial
from tests.kit import Calm, build, fit

LIVE: list[nn.Module] = []


def crowding(self: nn.LayerNorm, x: Tensor) -> Tensor:
    """Be quick on a copy, and hold up what runs beside it in a step."""
    if any(self is each for each in LIVE):
        CLOCK.spend(0.03)
    return quick(self, x)


def late(self: nn.LayerNorm, x: Tensor) -> Tensor:
    CLOCK.spend(0.02)
    return quick(self, x)


def failing_at(call: int, calls: list[int]) -> Any:
    """Be slow, and fail at one call."""

    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == call:
            raise RuntimeError("out of registers")
        return late(self, x)

    return forward


@pytest.fixture(autouse=True)
def _live() -> None:
    LIVE.clear()


def test_kernels_that_are_faster_by_themselves_and_not_in_the_step_are_noted() -> None:
    model = Net(SlowNorm)
    LIVE.extend(model.modules())
    result = run_trial(model, [Offers(SlowNorm, named(crowding))])
    assert result.kept == ()
    (slower,) = result.slower
    assert slower.layer == "blocks.0.norm"
    assert slower.kernel_seconds[1] < slower.kernel_seconds[0]
    assert slower.step_seconds[1] > slower.step_seconds[0]


def test_what_is_slow_by_itself_as_well_is_no_riddle() -> None:
    result = run_trial(Net(), [Offers(nn.LayerNorm, named(late))])
    (slower,) = result.slower
    assert slower.kernel_seconds[1] > slower.kernel_seconds[0]


def test_what_pays_is_not_looked_at_again() -> None:
    assert run_trial(Net(SlowNorm), [Offers(SlowNorm, quick)]).slower == ()


def test_one_that_fails_when_it_is_looked_at_has_no_times() -> None:
    calls: list[int] = []
    whole = run_trial(Net(), [Offers(nn.LayerNorm, failing_at(0, calls))])
    assert len(whole.slower) == 1
    # The look comes last, so that the last call is one of it.
    last = len(calls)
    calls.clear()
    result = run_trial(Net(), [Offers(nn.LayerNorm, failing_at(last, calls))])
    assert len(calls) == last
    assert (result.kept, result.slower) == ((), ())
    assert [row.verdict for row in result.rows] == ["rolled back"]


class Slow(Calm):
    """Calm, with a layer norm that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = SlowNorm(16)


@pytest.mark.parametrize(("forward", "rules"), [
    (crowding, ["fused_backward", "slower_after_fusing"]),
    (late, ["fused_backward"]),
])  # fmt: skip
def test_it_is_told_once_and_raises_no_alarm(forward: Any, rules: list[str]) -> None:
    sink, module = MemorySink(), build(Slow)
    LIVE.append(module.norm)
    providers = (Offers(SlowNorm, named(forward)),)
    options = FusedBackwardOptions(**{**QUICK, "after_steps": 2, "providers": providers})
    fit(module, [FusedBackward(options, sinks=[sink])])
    assert [finding.rule for finding in sink.findings] == rules
    assert {finding.severity for finding in sink.findings} == {"info"}
    for finding in sink.findings[1:]:
        assert finding.layer == "norm"
        assert float(finding.evidence["kernel_time_ratio"]) < 1
        assert float(finding.evidence["step_time_ratio"]) > 1
        assert "FusedBackward has rolled it back" in finding.remedy


def test_a_function_with_several_inputs_and_a_silent_output_can_be_looked_at() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, scale: float, other: Tensor) -> tuple[Tensor, Tensor]:
            return F.relu(x * scale + other), x.detach().sum()

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.two, self.head = nn.Linear(16, 8), Two(), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.linear(x)
            return self.head(self.two(h, 0.5, h)[0])

    def forward(self: nn.Module, x: Tensor, scale: float, other: Tensor) -> Any:
        CLOCK.spend(0.05)
        return Two.forward(self, x, scale, other)  # type: ignore[arg-type]

    (slower,) = run_trial(Holder(), [Offers(Two, forward)]).slower
    assert slower.layer == "two"
