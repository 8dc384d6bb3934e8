"""What bounds a layer, from figures alone."""

import pytest

from gradwatch.roofline import Ceilings
from gradwatch.roofline.costs import LayerCost, PhaseCost
from gradwatch.roofline.verdicts import LayerTime, LayerVerdict, judge_layer

MACHINE = Ceilings(
    device="toy",
    copy_bytes_per_second=100e9,
    matrix_flops_per_second={"float32": 1e12, "bfloat16": 4e12},
    launch_seconds=5e-6,
)
STEP = 0.1


def judge(cost: LayerCost, time: LayerTime) -> LayerVerdict:
    return judge_layer("net.0", cost, time, MACHINE, STEP)


def make_cost(moved: float, flops: float = 0.0, dtype: str = "float32") -> LayerCost:
    half = PhaseCost(matrix_flops={dtype: flops / 2}, moved_bytes=moved / 2)
    other = PhaseCost(matrix_flops={dtype: flops / 2}, moved_bytes=moved / 2)
    return LayerCost(forward=half, backward=other, saved_bytes=7.0)


def test_bytes_that_need_more_than_the_arithmetic_bound_a_layer() -> None:
    own = judge(make_cost(1e9, flops=1e9), LayerTime(forward=0.01, backward=0.015, kernels=3))
    assert own.kind == "bandwidth-bound"
    assert own.achieved_bytes_per_second == pytest.approx(40e9)
    assert own.intensity == 1.0
    assert own.saved_bytes == 7.0
    # A gigabyte at the ceiling takes 10 ms of the 25.
    assert own.gain_seconds == pytest.approx(0.015)
    assert own.gain_share == pytest.approx(0.15)
    assert "its 1,000 MB alone need 10 ms and its arithmetic 1 ms" in own.reason
    assert "40 GB/s (40% of the copy bandwidth)" in own.reason
    assert "FLOP/B, where the ridge of float32 lies at" in own.reason


def test_nothing_is_gained_where_the_ceiling_is_reached() -> None:
    own = judge(make_cost(1e9), LayerTime(forward=0.004, backward=0.005, kernels=2))
    assert own.gain_seconds == 0.0


def test_arithmetic_that_needs_more_than_the_bytes_bounds_a_layer() -> None:
    own = judge(make_cost(1e8, flops=1e11), LayerTime(forward=0.05, backward=0.1, kernels=4))
    assert own.kind == "compute-bound"
    assert own.gain_seconds == 0.0
    assert "its 100 GFLOP alone need 100 ms" in own.reason


def test_a_dtype_is_held_against_its_own_ceiling() -> None:
    cost = make_cost(5e8, flops=1e10, dtype="bfloat16")
    assert judge(cost, LayerTime(forward=0.01, kernels=4)).kind == "bandwidth-bound"
    assert judge(make_cost(5e8, flops=1e10), LayerTime(forward=0.01)).kind == "compute-bound"


def test_a_dtype_that_was_not_measured_counts_as_float32() -> None:
    cost = make_cost(5e8, flops=1e10, dtype="float16")
    assert judge(cost, LayerTime(forward=0.01)).kind == "compute-bound"


def test_launches_that_need_more_than_the_work_bound_a_layer() -> None:
    time = LayerTime(forward=2e-4, backward=2e-4, kernels=10, median_kernel=8e-6)
    own = judge(make_cost(1e4, flops=1e6), time)
    assert own.kind == "launch-bound"
    assert "its 10 kernels need 0.05 ms to be launched" in own.reason
    assert "the median kernel takes 8 µs" in own.reason
    # Ten kernels become two.
    assert own.gain_seconds == pytest.approx(4e-4 * 0.8)


def test_a_layer_that_mostly_stands_still_waits() -> None:
    time = LayerTime(forward=2e-3, backward=1e-3, idle=0.02, held=0.023, kernels=4, calls=1)
    own = judge(make_cost(1e8), time)
    assert own.kind == "waiting"
    assert own.gain_seconds == 0.0
    assert "nothing runs for 20 ms of the 23 ms" in own.reason


def test_a_gap_that_the_launches_explain_is_no_wait() -> None:
    time = LayerTime(forward=1e-3, idle=3e-3, held=4e-3, kernels=200, calls=1)
    assert judge(make_cost(1e4), time).kind == "launch-bound"


def test_a_container_whose_hooks_take_their_time_does_not_wait() -> None:
    time = LayerTime(forward=4e-3, idle=4e-3, held=4e-3, kernels=0, calls=60)
    assert judge(LayerCost(), time).kind != "waiting"


def test_a_layer_that_took_no_time_divides_by_nothing() -> None:
    own = judge(LayerCost(), LayerTime())
    assert (own.achieved_bytes_per_second, own.intensity, own.gain_share) == (0.0, 0.0, 0.0)
