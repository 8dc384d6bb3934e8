"""The part in a plain loop: the scheduler stays in charge, whatever the factor does."""

import io
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch.adaptive_lr import AdaptiveLearningRate, AdaptiveLearningRateOptions
from gradwatch.readings import FlowReading, ParameterReading, StepReading

QUICK = AdaptiveLearningRateOptions(averaging=0.5, warmup_steps=3, bounds=(0.01, 100.0))


class Rates(NamedTuple):
    """Rates of one step: scheduled, in force inside the update, and the factor between."""

    scheduled: list[float]
    applied: list[float]
    factors: list[float]


def read_rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def backward(model: nn.Module, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    batch = torch.randn(16, 4, generator=generator)
    model.zero_grad()
    loss: Tensor = (model(batch) - batch[:, :2]).square().mean()
    loss.backward()
    return loss


def measure(optimizer: Optimizer, step: int, name: str = "") -> StepReading:
    pairs = [(i, p) for i, g in enumerate(optimizer.param_groups) for p in g["params"]]
    grads = [math.nan if p.grad is None else float(p.grad.double().norm()) for _, p in pairs]
    parameters = ParameterReading(
        names=tuple(str(index) for index in range(len(pairs))),
        layer=np.zeros(len(pairs), dtype=np.int64),
        group=np.array([group for group, _ in pairs]),
        ndim=np.array([p.ndim for _, p in pairs]),
        has_grad=np.array([p.grad is not None for _, p in pairs]),
        grad_norm=np.array(grads),
        weight_norm=np.array([float(p.detach().double().norm()) for _, p in pairs]),
    )
    nothing, flags = np.zeros(0), np.zeros(0, dtype=np.bool_)
    return StepReading(
        step=step,
        log_step=step,
        optimizer=name,
        parameters=parameters,
        flow=FlowReading(
            layers=(), grad_norm=nothing, weight_norm=nothing, has_grad=flags, frozen=flags
        ),
        grad_norm=math.sqrt(float(np.nansum(parameters.grad_norm**2))),
    )


def train_step(
    part: AdaptiveLearningRate | None, model: nn.Module, optimizer: Optimizer, step: int
) -> Rates:
    """Do one update with the part around it; the scheduler is the caller's."""
    backward(model, step)
    scheduled, applied = read_rates(optimizer), list[float]()
    factors = [1.0] * len(scheduled)
    if part is not None:
        reading = measure(optimizer, step)
        part.judge(reading)
        part.before_update(optimizer, reading)
        factors = read_factors(part, len(scheduled))
    # Fires right before the update: no closure runs in between here.
    hook = optimizer.register_step_pre_hook(lambda *_: applied.extend(read_rates(optimizer)))
    optimizer.step()
    hook.remove()
    if part is not None:
        part.after_batch()
    return Rates(scheduled, applied, factors)


def read_factors(part: AdaptiveLearningRate, groups: int) -> list[float]:
    values = part.scalars()
    if groups == 1:
        return [values["lr/factor"]]
    return [values[f"lr/factor/group{index}"] for index in range(groups)]


S = torch.optim.lr_scheduler
SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "lambda": lambda optimizer: S.LambdaLR(optimizer, lambda step: 0.9**step),
    "exponential": lambda optimizer: S.ExponentialLR(optimizer, 0.9),
    "cosine": lambda optimizer: S.CosineAnnealingLR(optimizer, 50),
    "one cycle": lambda optimizer: S.OneCycleLR(optimizer, 0.5, total_steps=40),
    # Stepped on a fixed sequence, so that both runs are told the same.
    "plateau": lambda optimizer: S.ReduceLROnPlateau(optimizer, factor=0.5, patience=1),
}


def make_optimizer(model: nn.Sequential) -> Optimizer:
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.05})
    return optimizer


def train(
    part: AdaptiveLearningRate | None, kind: str, steps: int = 20
) -> tuple[list[Rates], dict[str, Any]]:
    model = make_model()
    optimizer = make_optimizer(model)
    scheduler = SCHEDULERS[kind](optimizer)
    rates = []
    for step in range(steps):
        rates.append(train_step(part, model, optimizer, step))
        scheduler.step(*([1.0] if kind == "plateau" else []))
    return rates, optimizer.state_dict()


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_the_scheduler_goes_its_own_way_bit_for_bit(kind: str) -> None:
    with_part, saved = train(AdaptiveLearningRate(QUICK), kind)
    without, plain = train(None, kind)
    assert [rates.scheduled for rates in with_part] == [rates.scheduled for rates in without]
    assert [group["lr"] for group in saved["param_groups"]] == [
        group["lr"] for group in plain["param_groups"]
    ]


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_the_update_sees_the_scheduled_rate_times_the_factor_bit_for_bit(kind: str) -> None:
    with_part, _ = train(AdaptiveLearningRate(QUICK), kind)
    for scheduled, applied, factors in with_part:
        assert applied == [rate * factor for rate, factor in zip(scheduled, factors, strict=True)]
    assert any(factor != 1.0 for rates in with_part for factor in rates.factors)


def test_a_factor_of_one_trains_bit_for_bit_like_no_part() -> None:
    models = [make_model(), make_model()]
    parts = [AdaptiveLearningRate(replace(QUICK, bounds=(1.0, 1.0))), None]
    for model, part in zip(models, parts, strict=True):
        optimizer = make_optimizer(model)
        for step in range(5):
            train_step(part, model, optimizer, step)
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)


def test_a_skipped_update_gets_its_rate_back_after_the_batch() -> None:
    model, part = make_model(), AdaptiveLearningRate(replace(QUICK, warmup_steps=0))
    optimizer = make_optimizer(model)
    backward(model, 0)
    reading = measure(optimizer, 0)
    part.judge(reading)
    part.before_update(optimizer, reading)
    assert read_rates(optimizer) != [0.1, 0.05]
    part.after_batch()
    assert read_rates(optimizer) == [0.1, 0.05]
    assert not optimizer._optimizer_step_post_hooks


def test_post_hooks_registered_around_it_are_called_and_see_the_users_rate() -> None:
    model, part = make_model(), AdaptiveLearningRate(replace(QUICK, warmup_steps=0))
    optimizer = make_optimizer(model)
    seen: list[list[float]] = []
    backward(model, 0)
    reading = measure(optimizer, 0)
    part.judge(reading)
    part.before_update(optimizer, reading)
    for _ in range(2):
        optimizer.register_step_post_hook(lambda *_: seen.append(read_rates(optimizer)))
    optimizer.step()
    assert seen == [[0.1, 0.05], [0.1, 0.05]]


def test_a_rate_that_other_code_wrote_meanwhile_stands() -> None:
    model, part = make_model(), AdaptiveLearningRate(replace(QUICK, warmup_steps=0))
    optimizer = make_optimizer(model)
    backward(model, 0)
    part.judge(measure(optimizer, 0))
    part.before_update(optimizer, measure(optimizer, 0))
    optimizer.param_groups[0]["lr"] = 0.7
    part.after_batch()
    assert read_rates(optimizer) == [0.7, 0.05]


def test_a_group_that_is_added_later_gets_a_factor_of_its_own() -> None:
    model, part = make_model(), AdaptiveLearningRate(QUICK)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    train_step(part, model, optimizer, 0)
    assert "lr/factor" in part.scalars()
    optimizer.add_param_group({"params": list(model[2].parameters())})
    for step in range(1, 4):
        rates = train_step(part, model, optimizer, step)
    assert rates.factors[0] != rates.factors[1]
    assert set(part.scalars()) == {
        f"lr/{name}/group{index}" for name in ("snr", "factor", "effective") for index in (0, 1)
    }


def test_two_optimizers_keep_averages_and_names_apart() -> None:
    model, part = make_model(), AdaptiveLearningRate(QUICK)
    optimizers = [torch.optim.SGD(model[index].parameters(), lr=0.1) for index in (0, 2)]
    alone = AdaptiveLearningRate(QUICK)
    for step in range(4):
        backward(model, step)
        part.judge(measure(optimizers[0], step, "opt0"))
        part.judge(measure(optimizers[1], step, "opt1"))
        alone.judge(measure(optimizers[1], step))
    assert set(part.scalars()) == {"lr/snr/opt1", "lr/factor/opt1"}
    assert part.scalars()["lr/factor/opt1"] == alone.scalars()["lr/factor"]


def test_a_resumed_run_equals_an_unbroken_one() -> None:
    model, part = make_model(), AdaptiveLearningRate(QUICK)
    optimizer = make_optimizer(model)
    unbroken = [train_step(part, model, optimizer, step) for step in range(8)]

    model, first = make_model(), AdaptiveLearningRate(QUICK)
    optimizer = make_optimizer(model)
    rates = [train_step(first, model, optimizer, step) for step in range(4)]
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = AdaptiveLearningRate(QUICK)
    second.load_state_dict(torch.load(file, weights_only=True))
    rates += [train_step(second, model, optimizer, step) for step in range(4, 8)]
    assert rates == unbroken


def test_zero_initialised_weights_train_at_the_scheduled_rate() -> None:
    model, part = make_model(), AdaptiveLearningRate(replace(QUICK, warmup_steps=0))
    nn.init.zeros_(model[2].get_parameter("weight"))
    optimizer = make_optimizer(model)
    rates = train_step(part, model, optimizer, 0)
    assert rates.factors[1] == 1.0
    assert rates.applied[1] == rates.scheduled[1]
    assert "lr/snr/group1" not in part.scalars()
