"""Symptoms of half precision, provoked in real training."""

import copy
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn

from gradwatch import MemorySink
from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.parts import Stage
from gradwatch.symptoms import SymptomWatch
from tests.kit import Calm, Net, build, differences, fingerprint, fit, make_half, make_loader


def told(module: pl.LightningModule, part: SymptomWatch | None = None, **trainer: Any) -> list[Any]:
    sink = MemorySink()
    configuration = Configuration(sinks=(sink,), console=False, record=False)
    watch = MonitorCallback((part or SymptomWatch(),), configuration)
    fit(module, [watch], make_loader(64), log_every_n_steps=1, **{"max_steps": 10, **trainer})
    return sink.findings


class Small(Calm):
    """Trains at a rate that suits float32."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def test_bfloat16_weights_that_lose_their_updates_are_told() -> None:
    found = {finding.rule: finding for finding in told(build(Small), precision="bf16-true")}
    assert set(found) == {"updates_lost", "no_float32_copy"}
    lost = found["updates_lost"]
    assert lost.evidence["dtype"] == "bfloat16"
    assert lost.evidence["update_ratio"] < 2**-9
    assert lost.step == 3


def test_the_weights_of_that_run_really_stand_still() -> None:
    module = build(Small)
    before = {name: each.detach().clone().bfloat16() for name, each in module.named_parameters()}
    told(module, precision="bf16-true")
    after = dict(module.named_parameters())
    still = [bool((after[name].bfloat16() == before[name]).float().mean() > 0.9) for name in before]
    assert sum(still) > len(still) // 2


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_float32_weights_lose_nothing(precision: Any) -> None:
    assert told(build(Small), precision=precision) == []


def test_a_scale_that_backs_off_to_nothing_is_told() -> None:
    class Overflows(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss: Tensor = super().training_step(batch, batch_idx)
            return loss * (1e30 if batch_idx else 1.0)

    found = told(build(Overflows), plugins=[make_half(4.0)], max_steps=8)
    assert [finding.rule for finding in found] == ["loss_scale_collapsed"]
    assert found[0].evidence["loss_scale"] <= 1


def test_a_scale_that_began_low_has_not_backed_off() -> None:
    assert told(build(Net), plugins=[make_half(1.0)], max_steps=4) == []


def test_weights_that_rest_at_a_rate_of_0_lose_no_update() -> None:
    class Rests(Calm):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    found = told(build(Rests), precision="bf16-true")
    assert [finding.rule for finding in found] == ["no_float32_copy"]


def test_lost_updates_are_told_once_whichever_layer_is_worst() -> None:
    class Slows(Calm):
        def configure_optimizers(self) -> Any:
            layers = [{"params": each.parameters()} for each in (self.hidden, self.conv)]
            return torch.optim.SGD([*layers, {"params": self.head.parameters()}], lr=1e-4)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            groups = self.trainer.optimizers[0].param_groups
            for group, rate in zip(groups, (1e-5, 1e-4, 1e-4), strict=True):
                group["lr"] = rate if batch_idx < 5 else 1e-9 / rate

    found = [each.rule for each in told(build(Slows), precision="bf16-true", max_steps=16)]
    assert found.count("updates_lost") == 1


def test_data_parallel_inside_a_model_is_told() -> None:
    class Wraps(Net):
        def __init__(self) -> None:
            super().__init__()
            spread = nn.DataParallel(nn.Linear(2, 2))
            spread.device_ids = [0, 1]
            self.spread = spread

    found = told(build(Wraps), max_steps=2)
    assert [finding.rule for finding in found] == ["one_process_many_devices"]


def test_data_parallel_around_a_model_in_a_plain_loop_is_told() -> None:
    wrapped = nn.DataParallel(nn.Linear(2, 2))
    wrapped.device_ids = [0, 1]
    part = SymptomWatch()
    part.open(Stage(wrapped.module, lambda _: None, lambda _: None, wrapped))
    assert part._devices == 2


def test_training_is_the_same_to_the_bit() -> None:
    plain, watched = build(Net), build(Net)
    without = fit(plain, max_steps=6)
    configuration = Configuration(sinks=(MemorySink(),), console=False, record=False)
    watch = MonitorCallback((SymptomWatch(),), configuration)
    beside = fit(watched, [watch], max_steps=6)
    assert differences(fingerprint(without, plain), fingerprint(beside, watched)) == []


def test_a_resumed_part_says_nothing_twice_and_a_copy_holds_no_model() -> None:
    first = SymptomWatch()
    assert told(build(Small), first, precision="bf16-true")
    second = copy.deepcopy(first)
    assert second._stage is None
    third = SymptomWatch()
    third.load_state_dict(first.state_dict())
    assert told(build(Small), third, precision="bf16-true") == []
