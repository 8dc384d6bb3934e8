"""From borders to phases, and intervals of time."""

import pytest

from gradwatch.parts import Border
from gradwatch.roofline.phases import (
    Crossing,
    overlap,
    split_steps,
    stretches,
    sum_phases,
    union,
)

LIGHTNING: tuple[Border, ...] = (
    "before_forward", "after_forward", "before_backward", "after_backward", "after_step",
    "before_transfer", "after_transfer", "before_forward",
)  # fmt: skip


def walk(*borders: Border) -> list[Crossing]:
    """Cross one border a second."""
    return [Crossing(float(second), border) for second, border in enumerate(borders)]


def test_a_step_of_a_trainer_falls_into_its_phases() -> None:
    assert [stretch.phase for stretch in stretches(walk(*LIGHTNING))] == [
        "forward", "forward", "backward", "optimizer", "data_wait", "host_to_device", "other",
    ]  # fmt: skip


def test_a_plain_loop_waits_for_data_until_its_next_forward() -> None:
    plain = walk("before_forward", "before_backward", "after_backward", "after_step")
    assert sum_phases([*plain, Crossing(9.0, "before_forward")])["data_wait"] == 6.0


def test_the_second_forward_of_a_training_step_with_two_optimizers_is_a_forward() -> None:
    manual = walk(
        "before_forward", "before_backward", "after_backward", "after_step",
        "before_backward", "after_backward", "after_step", "after_forward",
    )  # fmt: skip
    assert sum_phases(manual) == {"forward": 2, "backward": 2, "optimizer": 2, "other": 1}


def test_micro_batches_of_one_update_are_one_step() -> None:
    micro: tuple[Border, ...] = ("before_forward", "before_backward", "after_backward")
    steps = split_steps(walk(*micro, *micro, "after_step", *micro, *micro, "after_step", *micro))
    assert [len(step) for step in steps] == [8, 8]


def test_a_step_that_was_not_ended_is_left_out() -> None:
    assert split_steps(walk("before_forward", "after_forward")) == []


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [
        ([(0, 1)], [(2, 3)], 0),
        ([(0, 4)], [(1, 2), (3, 9)], 2),
        ([(0, 1), (2, 3)], [(0, 3)], 2),
        ([], [(0, 1)], 0),
    ],
)
def test_the_overlap_of_intervals(
    left: list[tuple[float, float]], right: list[tuple[float, float]], both: float
) -> None:
    assert overlap(union(left), union(right)) == both
