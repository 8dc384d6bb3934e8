"""A few steps beside the stock model: how far off is too far."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.fused.observe import observe
from gradwatch.fused.regression import NUDGED_RUNS, Regression
from tests.fused.lab import loss_of, make_batch, make_bench, quick

STEPS = 4


class Tilted(nn.Module):
    """A norm whose result can be made a little too large, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)
        self.tilt = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(quick(self.norm, x) * (1 + self.tilt))


def tilting(model: Tilted, tilt: float) -> Callable[[], None]:
    def dress() -> None:
        model.tilt = tilt

    return dress


@pytest.mark.parametrize(("times", "told"), [(1.0, False), (40.0, True)])
def test_the_measure_is_what_roundings_of_the_weights_make(times: float, told: bool) -> None:
    model = Tilted()
    bench = make_bench(model)
    with bench.opened():
        course = Regression(bench, tilting(model, 0.0), STEPS)
        # Few roundings tilt the course in proportion: taken from a tilt that is far too much.
        unit = course._distance(course._run(tilting(model, 1e-2))) / 1e-2
        assert unit * 1e-2 > 40 * course.drift > 0
        reason = course.fault(tilting(model, times * course.drift / unit))
    assert bool(reason) is told
    assert not told or reason.startswith("after 4 steps it is")


def test_a_model_that_is_not_like_itself_is_measured_by_that() -> None:
    calls = [0]

    class Moody(Tilted):
        def forward(self, x: Tensor) -> Tensor:
            calls[0] += 1
            # The second look at the stock course.
            unlike = STEPS < calls[0] <= 2 * STEPS
            return super().forward(x) * (1 + 1e-3 * unlike)

    model = Moody()
    bench = make_bench(model)
    with bench.opened():
        course = Regression(bench, tilting(model, 0.0), STEPS)
        assert course.drift > 1e-4
        assert course.fault(tilting(model, 5e-4)) == ""


def test_a_loss_that_is_another_is_a_departure_though_the_weights_go_the_same_way() -> None:
    def shifted(model: Any, batch: Any) -> Tensor:
        return loss_of(model, batch) + 10 * model.tilt

    class Steady(Tilted):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(quick(self.norm, x))

    model = Steady()
    bench = make_bench(model, loss=shifted)
    with bench.opened():
        course = Regression(bench, tilting(model, 0.0), STEPS)
        assert course.fault(tilting(model, 0.0)) == ""
        assert course.fault(tilting(model, 0.1)).startswith("after 4 steps it is")


def test_gradients_of_one_step_are_not_left_for_the_next() -> None:
    seen: list[Any] = []

    class Watched(Tilted):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(self.head.weight.grad)
            return super().forward(x)

    bench = make_bench(Watched(), make_batch())
    with bench.opened():
        Regression(bench, lambda: None, STEPS)
    assert seen == [None] * ((2 + NUDGED_RUNS) * STEPS)


def test_weights_are_afterwards_the_same_bits() -> None:
    model = Tilted()
    before = [each.detach().clone() for each in model.parameters()]
    bench = make_bench(model)
    with bench.opened():
        Regression(bench, lambda: None, STEPS)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_rounding_is_that_of_the_shortest_type_the_step_was_seen_to_compute_in() -> None:
    def under_autocast(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_of(model, batch)

    drifts = []
    for loss in (loss_of, under_autocast):
        bench = make_bench(Tilted(), loss=loss)
        with bench.opened():
            observe(bench, lambda: None)
            drifts.append(Regression(bench, lambda: None, STEPS).drift)
    assert bench.half_types == {torch.bfloat16}
    assert drifts[1] > 100 * drifts[0] > 0


def test_the_measure_is_the_worst_of_several_runs_with_other_roundings() -> None:
    bench = make_bench(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 3)))
    with bench.opened():
        course = Regression(bench, lambda: None, STEPS)
        seeds = range(1, NUDGED_RUNS + 1)
        drifts = {course._distance(course._run(lambda: None, seed)) for seed in seeds}
    assert len(drifts) == NUDGED_RUNS >= 3
    assert course.drift == max(drifts)
