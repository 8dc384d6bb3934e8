"""An SNR that stays out of range is told once, with its numbers."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from gradwatch.adaptive_lr import AdaptiveLearningRateOptions, GroupNorms
from gradwatch.adaptive_lr.watch import Streak, observe, tell

OPTIONS = AdaptiveLearningRateOptions(patience=3, cooldown_steps=10)


def find_told(ratios: list[float]) -> list[tuple[int, str]]:
    streak, told = Streak(), []
    for step, ratio in enumerate(ratios):
        side, streak = observe(ratio, streak, step, OPTIONS)
        told += [(step, side)] if side else []
    return told


def test_a_lasting_imbalance_is_told_after_patience_and_again_after_the_cooldown() -> None:
    assert find_told([0.5] * 16) == [(2, "low"), (12, "low")]
    assert find_told([500.0] * 5) == [(2, "high")]


def test_a_second_run_that_begins_at_step_0_is_not_kept_quiet_by_the_first() -> None:
    told = Streak(low=50, quiet_until=1000 + OPTIONS.cooldown_steps)
    streak, sides = told._replace(low=0), []
    for step in range(4):
        side, streak = observe(0.5, streak, step, OPTIONS)
        sides += [(step, side)] if side else []
    assert sides == find_told([0.5] * 4)


@pytest.mark.parametrize("ratio", [1.0, 10.0, 100.0])
def test_a_ratio_within_the_limits_says_nothing(ratio: float) -> None:
    assert find_told([ratio] * 20) == []


@pytest.mark.parametrize("between", [10.0, math.nan, 500.0])
def test_one_step_elsewhere_starts_the_count_again(between: float) -> None:
    assert find_told([0.5, 0.5, between, 0.5, 0.5]) == []


def measure_norms(model: nn.Linear) -> GroupNorms:
    assert model.weight.grad is not None
    return GroupNorms(float(model.weight.detach().norm()), float(model.weight.grad.norm()))


def test_a_diverging_run_is_told_before_its_loss_is_lost() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.5)
    x_BC, y_BC = 3 * torch.randn(32, 4), torch.randn(32, 4)
    streak, told = Streak(), []
    for step in range(15):
        optimizer.zero_grad()
        loss = (model(x_BC) - y_BC).square().mean()
        loss.backward()
        norms = measure_norms(model)
        side, streak = observe(norms.weight_norm / norms.grad_norm, streak, step, OPTIONS)
        told += [tell(side, "group 0", norms, streak, step)] if side else []
        optimizer.step()
    assert math.isfinite(float(loss.detach()))
    assert told[0].rule == "snr_low"
    assert told[0].severity == "warning"
    assert float(told[0].evidence["snr"]) < 1
    assert told[0].evidence["steps_in_a_row"] == 3
    assert "tears them (group 0)" in told[0].summary


def test_wide_limits_keep_quiet() -> None:
    options = replace(OPTIONS, low=1e-6, high=1e6)
    assert observe(0.5, Streak(low=5), 9, options)[0] is None
