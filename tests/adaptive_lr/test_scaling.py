"""Rates multiplied for one update: floats, tensors, shared tensors, and what is refused."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from gradwatch.adaptive_lr import PendingRates, refuse, scale_rates


def make_adam(lr: float | Tensor, groups: int = 2) -> torch.optim.Adam:
    weights = [{"params": [nn.Parameter(torch.ones(2))]} for _ in range(groups)]
    return torch.optim.Adam(weights, lr=lr, foreach=False)


def test_a_rate_in_a_tensor_is_scaled_in_place_and_comes_back_exactly() -> None:
    rate = torch.tensor(0.1)
    optimizer = make_adam(rate, groups=1)
    undo = scale_rates(optimizer, [1 / 3])
    assert optimizer.param_groups[0]["lr"] is rate
    assert torch.equal(rate, torch.tensor(0.1) * (1 / 3))
    undo()
    assert optimizer.param_groups[0]["lr"] is rate
    assert torch.equal(rate, torch.tensor(0.1))


def test_scaling_a_rate_in_a_tensor_reads_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_wait(*_: object) -> None:
        pytest.fail("a tensor was read on the host")

    optimizer = make_adam(torch.tensor(0.1), groups=1)
    for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__float__"):
        monkeypatch.setattr(Tensor, name, refuse_to_wait)
    pending = PendingRates()
    pending.apply(optimizer, [0.5])
    pending.restore()
    monkeypatch.undo()
    assert torch.equal(optimizer.param_groups[0]["lr"], torch.tensor(0.1))


def test_a_tensor_that_other_code_filled_meanwhile_stands() -> None:
    rate = torch.tensor(0.1)
    undo = scale_rates(make_adam(rate, groups=1), [0.5])
    rate.fill_(0.7)
    undo()
    assert torch.equal(rate, torch.tensor(0.7))


def test_groups_that_share_one_tensor_get_a_factor_each_and_the_tensor_back() -> None:
    rate = torch.tensor(0.1)
    optimizer = make_adam(rate)
    assert optimizer.param_groups[0]["lr"] is optimizer.param_groups[1]["lr"]
    undo = scale_rates(optimizer, [0.5, 2.0])
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.05, 0.2])
    undo()
    assert all(group["lr"] is rate for group in optimizer.param_groups)
    assert torch.equal(rate, torch.tensor(0.1))


def test_a_thousand_updates_leave_a_float_rate_untouched() -> None:
    optimizer = make_adam(0.1)
    pending = PendingRates()
    for step in range(1000):
        pending.apply(optimizer, [math.pi / (step + 1), 3.0])
        pending.restore()
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1]


def test_a_second_update_without_a_restore_between_starts_from_the_users_rate() -> None:
    optimizer = make_adam(0.1)
    pending = PendingRates()
    pending.apply(optimizer, [0.5, 0.5])
    pending.apply(optimizer, [0.5, 0.5])
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]


def test_an_optimizer_pickles_and_copies_while_its_rates_are_scaled() -> None:
    optimizer = make_adam(0.1)
    pending = PendingRates()
    pending.apply(optimizer, [0.5, 0.5])
    clone = copy.deepcopy(optimizer)
    pending.restore()
    assert [group["lr"] for group in clone.param_groups] == [0.05, 0.05]


def test_the_step_itself_puts_the_rates_back_before_its_hooks_are_done() -> None:
    optimizer = make_adam(0.1)
    pending = PendingRates()
    pending.apply(optimizer, [0.5, 0.5])
    for group in optimizer.param_groups:
        group["params"][0].grad = torch.ones(2)
    optimizer.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1]


class SubclassedLBFGS(torch.optim.LBFGS):
    """Stands for any optimizer built on LBFGS."""


def test_an_optimizer_that_evaluates_its_closure_again_is_refused_with_the_reason() -> None:
    reason = refuse(SubclassedLBFGS([nn.Parameter(torch.ones(2))]))
    assert reason is not None
    assert "SubclassedLBFGS evaluates its closure several times" in reason


def test_an_optimizer_without_a_rate_is_refused_with_the_reason() -> None:
    optimizer = make_adam(0.1)
    optimizer.param_groups[1]["lr"] = None
    assert refuse(optimizer) == (
        "Adam has a parameter group without a learning rate, so there is none to multiply."
    )


def test_what_is_no_torch_optimizer_is_refused() -> None:
    assert "no torch.optim.Optimizer" in str(refuse(object()))


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_a_usual_optimizer_is_welcome(lr: float | Tensor) -> None:
    assert refuse(make_adam(lr)) is None
