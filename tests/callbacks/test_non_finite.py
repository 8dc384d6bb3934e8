"""The non-finite monitor under a Trainer: what it says, what it keeps, what it lets pass."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch import MemorySink, NonFiniteGradientError, NonFiniteOptions
from gradwatch.callbacks import NonFiniteMonitor
from tests.kit import Calm, Net, build, fit, make_half, make_loader

SKIP = NonFiniteOptions(policy="skip")


class Root(Calm):
    """The root of a difference that is zero: a finite loss, an infinite gradient."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(self.act(self.conv(x)).flatten(1))
        distance = (h - h.detach()).abs().sum(1).sqrt()
        out: Tensor = self.head(self.norm(h)) + distance.unsqueeze(1)
        return out


def stopped(make: Any, loader: Any = None, **options: Any) -> tuple[Any, NonFiniteGradientError]:
    module = build(make)
    with pytest.raises(NonFiniteGradientError) as caught:
        fit(module, [NonFiniteMonitor()], loader, **options)
    return module, caught.value


def test_the_error_names_the_place_the_cause_and_where_the_weights_lie() -> None:
    module, error = stopped(Root)
    text = str(error)
    assert "sqrt" in text
    assert "intact" in text
    assert Path("gradwatch_runs/before-step-0.ckpt").exists()
    assert all(torch.isfinite(each).all() for each in module.parameters())


def test_the_micro_batch_is_named_under_accumulation() -> None:
    _, error = stopped(Calm, make_loader(28, [18]), accumulate_grad_batches=3)
    assert error.finding.step == 1
    assert error.finding.evidence["micro-batch"] == "2 of 3"
    assert error.finding.evidence["batch"] == 4


def test_only_the_bad_optimizer_step_of_a_batch_is_stopped() -> None:
    class TwoSteps(Calm):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer: Any = self.optimizers()
            for factor in (1.0, float("inf") if batch_idx == 2 else 1.0):
                optimizer.zero_grad()
                loss = F.cross_entropy(self(batch[0]), batch[1]) * factor
                self.manual_backward(loss)
                optimizer.step()

    _, error = stopped(TwoSteps)
    assert error.finding.step == 5


def test_a_scalers_overflow_is_counted_and_training_goes_on() -> None:
    sink = MemorySink()
    adam = partial(Calm, partial(torch.optim.Adam, lr=1e-3))
    options: dict[str, Any] = {"plugins": [make_half(2.0**21)], "log_every_n_steps": 1}
    trainer = fit(build(adam), [NonFiniteMonitor(sinks=[sink])], **options)
    assert sink.findings == []
    skipped = sink.records[-1].scalars["grad/skipped"]
    scaler: Any = trainer.precision_plugin.scaler  # type: ignore[attr-defined]
    assert skipped > 0
    assert scaler.get_scale() == 2.0 ** (21 - skipped)


def test_the_kth_skip_in_a_row_is_looked_into() -> None:
    sink = MemorySink()
    adam = partial(Root, partial(torch.optim.Adam, lr=1e-3))
    monitor = NonFiniteMonitor(NonFiniteOptions(scaler_patience=4), sinks=[sink])
    fit(build(adam), [monitor], plugins=[make_half()], max_epochs=1)
    assert [finding.step for finding in sink.findings] == [3]
    assert "the scaler has skipped 4 steps in a row" in sink.findings[0].summary


def test_without_replays_the_answer_comes_from_the_gradients_and_says_so() -> None:
    sink = MemorySink()
    options = NonFiniteOptions(policy="skip", replay=False)
    fit(build(Root), [NonFiniteMonitor(options, sinks=[sink])], max_steps=1)
    assert "replays are turned off" in " ".join(sink.findings[0].lines())
    assert sink.findings[0].layer == "hidden"


def test_a_swallowed_nan_is_no_alarm() -> None:
    class Masked(Net):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            with torch.no_grad():
                shade = torch.log(out.detach() * 0.0 - 1.0)
            return torch.where(torch.isnan(shade), out, shade)

    sink = MemorySink()
    fit(build(Masked), [NonFiniteMonitor(sinks=[sink])], max_epochs=1)
    assert sink.findings == []


def test_a_bad_loss_beside_finite_gradients_is_told() -> None:
    class LogsNan(Calm):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return loss + (torch.tensor(float("nan")) if batch_idx == 1 else 0.0)

    sink = MemorySink()
    fit(build(LogsNan), [NonFiniteMonitor(SKIP, sinks=[sink])], max_epochs=1)
    assert [finding.step for finding in sink.findings] == [1]
    assert "the gradients are finite" in sink.findings[0].summary


def test_weights_made_bad_by_the_optimizer_are_laid_at_its_door() -> None:
    class Poisoned(Calm):
        def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            super().optimizer_step(*args, **kwargs)
            if self.trainer.global_step == 2:
                nn.init.constant_(self.head.bias, float("nan"))

    _, error = stopped(Poisoned)
    assert error.finding.layer == "<optimizer>"
    assert error.finding.step == 3
    assert "intact    no: the weights were bad before" in str(error)
    assert not list(Path("gradwatch_runs").glob("*.ckpt"))
