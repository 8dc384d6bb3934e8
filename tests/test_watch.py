"""A plain loop is watched like a Trainer's: same numbers, no changed bit, nothing left."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch import (
    AdaptiveLearningRateOptions,
    MemorySink,
    NonFiniteGradientError,
    NonFiniteOptions,
    Watch,
    watch,
)
from gradwatch.report import write_report
from tests.kit import Net, build, differences, make_samples, random_state

SKIP = NonFiniteOptions(policy="skip")


class Loop:
    """A loop as people write it, with momentum and dropout; watched or not."""

    def __init__(self, spoil: tuple[int, ...] = (), scaler: Any = None) -> None:
        self.model = build(Net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scaler = scaler
        self.x, self.y = make_samples(28, spoil)
        self.losses: list[Tensor] = []
        self.sink = MemorySink()

    def watch(self, **options: Any) -> Watch:
        quiet = {"console": False, "sinks": [self.sink], "log_every_n_steps": 1}
        return watch(self.model, self.optimizer, scaler=self.scaler, **{**quiet, **options})

    def step(self, number: int) -> None:
        rows = slice(4 * number, 4 * number + 4)
        loss = F.cross_entropy(self.model(self.x[rows]), self.y[rows])
        self.losses.append(loss.detach().clone())
        self.optimizer.zero_grad()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def run(self, steps: int = 7) -> dict[str, Any]:
        for number in range(steps):
            self.step(number)
        return self.print()

    def print(self) -> dict[str, Any]:
        return {
            "weights": copy.deepcopy(self.model.state_dict()),
            "losses": self.losses,
            "optimizer": self.optimizer.state_dict(),
            **random_state(),
        }


def make_scaler() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=1024.0)


@pytest.mark.parametrize("make", [lambda: None, make_scaler], ids=["plain", "a scaler"])
def test_a_watched_loop_is_the_unwatched_one_bit_for_bit(make: Callable[[], Any]) -> None:
    bare = Loop(scaler=make()).run()
    loop = Loop(scaler=make())
    with loop.watch(backward_hooks="every_step") as watched:
        assert differences(bare, loop.run()) == []
    assert watched.findings == ()
    assert len(loop.sink.records) == 7


def test_the_norms_are_those_of_the_gradients() -> None:
    loop = Loop()
    with loop.watch():
        loop.run(3)
    grads = [p.grad.double() for p in loop.model.parameters() if p.grad is not None]
    slow = float(torch.cat([grad.flatten() for grad in grads]).norm())
    assert loop.sink.records[-1].scalars["grad/norm"] == pytest.approx(slow, rel=1e-5)
    assert len(loop.sink.coverage) == 5


def test_it_stops_before_the_weights_take_a_bad_gradient_in() -> None:
    loop = Loop(spoil=(9,))
    with loop.watch(), pytest.raises(NonFiniteGradientError, match="step 2: NaN came in") as caught:
        loop.run()
    clean = Loop()
    clean.run(2)
    good = dict(clean.model.named_parameters())
    assert differences(good, dict(loop.model.named_parameters())) == []
    assert caught.value.finding.layer == "<input>"


def test_a_skip_leaves_momentum_and_decay_alone() -> None:
    loop = Loop(spoil=(9,))
    with loop.watch(non_finite=SKIP) as watched:
        loop.run(2)
        before = copy.deepcopy(loop.optimizer.state_dict())
        weights = {name: each.detach().clone() for name, each in loop.model.named_parameters()}
        loop.step(2)
        assert differences(before, loop.optimizer.state_dict()) == []
        assert differences(weights, dict(loop.model.named_parameters())) == []
        loop.step(3)
    assert differences(weights, dict(loop.model.named_parameters())) != []
    assert [finding.step for finding in watched.findings] == [2]


def test_an_adapted_rate_is_back_after_each_step_and_its_hook_off_at_the_end() -> None:
    loop = Loop()
    rates = []
    with loop.watch(adaptive_lr=AdaptiveLearningRateOptions(warmup_steps=0)):
        for number in range(3):
            loop.step(number)
            rates.append(loop.optimizer.param_groups[0]["lr"])
    assert rates == [1e-2] * 3
    assert loop.sink.records[-1].scalars["lr/factor"] != 1.0
    assert len(loop.optimizer._optimizer_step_post_hooks) == 0


def test_a_loss_that_is_shown_is_told_where_gradients_stay_finite() -> None:
    loop = Loop()
    with loop.watch(non_finite=SKIP) as watched:
        loss = loop.model(loop.x[:4]).sum()
        watched.loss(loss * float("nan"))
        loss.backward()
        loop.optimizer.step()
    assert [finding.rule for finding in watched.findings] == ["non_finite"]


def test_forwards_without_training_are_not_counted() -> None:
    loop = Loop()
    with loop.watch():
        loop.step(0)
        loop.model.eval()
        loop.model(loop.x)
        loop.model.train()
        with torch.no_grad():
            loop.model(loop.x)
        loop.step(1)
    assert [record.step for record in loop.sink.records] == [0, 1]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_a_loop_that_broke(error: type[BaseException]) -> None:
    loop = Loop(scaler=make_scaler())
    before = vars(loop.scaler).keys() | set()

    def broken() -> None:
        with loop.watch(backward_hooks="every_step"):
            loop.run(2)
            raise error

    with pytest.raises(error):
        broken()
    for module in loop.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not loop.optimizer._optimizer_step_pre_hooks
    assert not loop.optimizer._optimizer_step_post_hooks
    assert vars(loop.scaler).keys() == before
    assert loop.sink.closed == 1


def test_closing_twice_is_closing_once() -> None:
    loop = Loop()
    watched = loop.watch()
    loop.run(1)
    watched.close()
    watched.close()
    assert loop.sink.closed == 1
    loop.run(1)
    assert len(loop.sink.records) == 1


def test_a_state_goes_over_to_the_next_run() -> None:
    first, second = Loop(spoil=(5,)), Loop()
    with first.watch(non_finite=SKIP) as watched:
        first.run(3)
        state = watched.state_dict()
    with second.watch(non_finite=SKIP) as again:
        again.load_state_dict(state)
        second.run(1)
    assert second.sink.records[-1].scalars["grad/skipped"] == 1.0


def test_two_optimizers_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    sink = MemorySink()
    with watch(model, optimizers, console=False, sinks=[sink], log_every_n_steps=1):
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad()
    named = {key for record in sink.records for key in record.scalars}
    assert {"grad/norm/opt0", "grad/norm/opt1"} <= named


def test_every_skip_is_counted_where_only_a_part_of_the_model_is_called() -> None:
    model, sink = nn.Sequential(nn.Linear(4, 3)), MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with watch(model, optimizer, scaler=scaler, console=False, sinks=[sink], log_every_n_steps=1):
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model[0](torch.full((5, 4), 1e5)).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert sink.records[-1].scalars["grad/skipped"] == 3


def test_a_plain_loop_keeps_a_record_on_request_and_a_report_is_made_of_it() -> None:
    Loop().watch(record=True).close()
    assert not Path("gradwatch_runs").exists()
    loop = Loop()
    with loop.watch(record=True):
        loop.run(2)
    assert "Healthy" in write_report(".").read_text()
