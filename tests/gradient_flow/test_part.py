"""The part between readings and findings: patience, cooldown, choice of layers, resuming."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradwatch import ConfigurationError, Finding, GradientFlowOptions
from gradwatch.gradient_flow import GradientFlow

Reading = Callable[..., Any]
FADING = np.array([1e-9, 1e-6, 1e-3, 1.0])
NAMES = tuple(f"net.{i}" for i in range(4))


def make_part(**options: Any) -> GradientFlow:
    part = GradientFlow(GradientFlowOptions(**options))
    part.start(NAMES)
    return part


def judge(part: GradientFlow, reading: Reading, steps: range, **flow: Any) -> list[Finding]:
    norms = flow.pop("norms", FADING)
    return [each for step in steps for each in part.judge(reading(norms, step, **flow))]


@pytest.mark.parametrize("patience", [1, 3, 5])
def test_vanishing_is_told_after_so_many_steps_in_a_row(reading: Reading, patience: int) -> None:
    findings = judge(make_part(patience=patience), reading, range(12))
    assert [(each.rule, each.step) for each in findings] == [("vanishing", patience - 1)]


def test_one_good_step_begins_the_patience_anew(reading: Reading) -> None:
    part = make_part(patience=3)
    findings = judge(part, reading, range(2))
    findings += judge(part, reading, range(2, 3), norms=np.ones(4))
    findings += judge(part, reading, range(3, 5))
    assert findings == []


def test_the_same_finding_waits_for_its_cooldown(reading: Reading) -> None:
    findings = judge(make_part(patience=2, cooldown=10), reading, range(30))
    assert [each.step for each in findings] == [1, 11, 21]


def test_layers_that_were_not_chosen_are_not_judged(reading: Reading) -> None:
    part = make_part(layers=("net.2", "net.3"), patience=2)
    assert judge(part, reading, range(6)) == []


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_names() -> None:
    part = GradientFlow(GradientFlowOptions(layers=("nett.0",)))
    with pytest.raises(ConfigurationError, match=r"matches no layer .*net\.0"):
        part.start(NAMES)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("patience", 0),
        ("cooldown", -1),
        ("vanishing", 0.0),
        ("vanishing", 2.0),
        ("exploding", 1.0),
        ("layers", ()),
        ("layers", "net.*"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=option):
        GradientFlowOptions(**{option: value})


@pytest.mark.parametrize("stop", [1, 3, 4, 7])
def test_a_resumed_part_tells_what_an_unbroken_one_tells(reading: Reading, stop: int) -> None:
    unbroken = make_part(cooldown=6)
    expected = judge(unbroken, reading, range(14))
    first, second = make_part(cooldown=6), make_part(cooldown=6)
    findings = judge(first, reading, range(stop))
    second.load_state_dict(first.state_dict())
    findings += judge(second, reading, range(stop, 14))
    assert findings == expected
    assert second.state_dict() == unbroken.state_dict()


def test_a_layer_called_but_never_reached_is_told_once_and_not_as_unused(reading: Reading) -> None:
    norms = np.array([np.nan, 1.0, 1.0, 1.0])
    findings = judge(make_part(), reading, range(12), norms=norms)
    assert [(each.rule, each.layer) for each in findings] == [("disconnected", "net.0")]


def test_a_layer_that_idles_later_is_information_only(reading: Reading) -> None:
    part = make_part()
    judge(part, reading, range(3), norms=np.ones(4))
    idle = np.array([1.0, np.nan, 1.0, 1.0])
    findings = judge(part, reading, range(3, 12), norms=idle)
    assert [(each.rule, each.severity, each.step) for each in findings] == [("unused", "info", 7)]


def test_a_branch_born_at_zero_is_given_longer_to_wake(reading: Reading) -> None:
    part = make_part(patience=2)
    judge(part, reading, range(1), norms=np.array([0.0, 1.0, 1.0, 1.0]))
    findings = judge(part, reading, range(1, 60), norms=np.array([1e-9, 1.0, 1.0, 1.0]))
    assert [(each.rule, each.step) for each in findings] == [("vanishing", 40)]


def test_frozen_layers_and_zero_weights_are_not_judged(reading: Reading) -> None:
    frozen = np.array([True, False, False, False])
    weights = np.array([1.0, 0.0, 1.0, 1.0])
    norms = np.array([1e-9, 1e-9, 1.0, 1.0])
    findings = judge(
        make_part(), reading, range(12), norms=norms, frozen=frozen, weight_norm=weights
    )
    assert findings == []


def test_a_second_fit_of_the_same_part_is_told_as_the_first_was(reading: Reading) -> None:
    part, cut = make_part(patience=2), np.array([np.nan, np.nan, 1.0, 1.0])
    first = [(each.rule, each.step) for each in judge(part, reading, range(8), norms=cut)]
    assert first == [("disconnected", 0)]
    second = [(each.rule, each.step) for each in judge(part, reading, range(8), norms=cut)]
    assert second == first
