"""A monitor never takes a run down: what breaks is told once and left out, training goes on."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from gradwatch import ConfigurationError, MemorySink, NonFiniteOptions, watch
from gradwatch.adaptive_lr import AdaptiveLearningRate
from gradwatch.callbacks import GradWatch
from gradwatch.findings import Finding
from gradwatch.gradient_flow import GradientFlow
from gradwatch.graph import GraphWatch
from gradwatch.hooks import Taps
from gradwatch.measure import OptimizerView
from gradwatch.memory import MemoryDelta
from gradwatch.non_finite import replay
from gradwatch.non_finite.monitor import NonFinite
from gradwatch.pending import Ledger
from gradwatch.session import Session
from gradwatch.step import StepInputs
from gradwatch.transfer import Transfer
from gradwatch.window import Window
from tests.kit import (
    Net,
    build,
    differences,
    fingerprint,
    fit,
    make_loader,
    make_sgd,
    watcher,
)


class BrokenError(Exception):
    pass


def explode(*args: Any, **kwargs: Any) -> Any:
    raise BrokenError("inside the monitor")


@pytest.fixture(scope="module")
def bare() -> dict[str, Any]:
    module = build(Net)
    return fingerprint(fit(module), module)


def train(callback: pl.Callback, **options: Any) -> dict[str, Any]:
    module = build(Net)
    return fingerprint(fit(module, [callback], log_every_n_steps=1, **options), module)


def find_errors(sink: MemorySink) -> list[Finding]:
    return [finding for finding in sink.findings if finding.rule == "monitor_error"]


PARTS = [
    (kind, method)
    for kind in (NonFinite, GradientFlow, MemoryDelta)
    for method in ("guard", "judge", "before_update", "border", "after_batch", "scalars")
]


@pytest.mark.parametrize(("kind", "method"), PARTS, ids=lambda it: getattr(it, "__name__", it))
def test_a_part_that_raises_is_told_once_and_the_others_go_on(
    kind: Any, method: str, bare: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, method, explode)
    callback, sink = watcher()
    assert differences(bare, train(callback)) == []
    (error,) = find_errors(sink)
    assert error.layer == kind.name
    assert error.evidence == {"error": "inside the monitor"}
    assert "is switched off; training goes on" in error.summary
    assert len(sink.records) == 14


@pytest.mark.parametrize("kind", [GraphWatch, MemoryDelta])
def test_a_part_that_raises_leaves_no_hook_behind(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "before_backward", explode)
    module, (callback, sink) = build(Net), watcher()
    fit(module, [callback])
    assert [error.layer for error in find_errors(sink)] == [kind.name]
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


@pytest.mark.parametrize("kind", [GraphWatch, MemoryDelta])
def test_in_a_plain_loop_a_part_that_raises_within_the_forward_leaves_no_hook_behind(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "before_backward", explode)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, console=False) as watched:
        for _ in range(2):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [finding.layer for finding in watched.findings] == [kind.name]
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


SESSION = [
    (Window, "begin"),
    (Window, "backward_begins"),
    (Window, "backward_done"),
    (OptimizerView, "load"),
    (OptimizerView, "unload"),
    (OptimizerView, "moved"),
    (StepInputs, "unload"),
    (Transfer, "fetch"),
    (Taps, "attach"),
    (Ledger, "records"),
]


@pytest.mark.parametrize(("kind", "method"), SESSION, ids=lambda it: getattr(it, "__name__", it))
def test_a_measurement_that_fails_switches_the_session_off_once(
    kind: Any, method: str, bare: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, method, explode)
    callback, sink = watcher(adaptive_lr=True)
    assert differences(bare, train(callback)) == []
    (error,) = find_errors(sink)
    assert error.layer == "gradwatch"
    assert sink.closed == 1


def test_a_session_that_fails_late_takes_its_hooks_and_the_adapted_rate_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: list[float] = []

    class LooksAtRate(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *args: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])
            hooks.append(sum(len(part._forward_hooks) for part in module.modules()))

    hooks: list[int] = []
    await_update = Session._await_update

    def fails_late(session: Session, optimizer: Any, reading: Any) -> None:
        if reading.step == 3:
            explode()
        await_update(session, optimizer, reading)

    monkeypatch.setattr(Session, "_await_update", fails_late)
    callback, sink = watcher(adaptive_lr=True, backward_hooks="every_step")
    fit(build(Net), [callback, LooksAtRate()])
    assert rates == [0.05] * 14
    assert hooks == [0] * 14
    assert [error.step for error in find_errors(sink)] == [4]


class BrokenSink(MemorySink):
    """A sink of which one method raises."""

    def __init__(self, method: str) -> None:
        super().__init__()
        setattr(self, method, explode)


def spoilt() -> Any:
    return make_loader(28, spoil=[6])


@pytest.mark.parametrize("method", ["start", "record", "finding", "close"])
def test_a_sink_that_raises_is_left_out_and_the_others_are_told(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    skips = NonFiniteOptions(policy="skip")
    good, quiet = MemorySink(), MemorySink()
    both = [BrokenSink(method), good]
    callback = GradWatch(console=False, record=False, sinks=both, non_finite=skips)
    alone = GradWatch(console=False, record=False, sinks=[quiet], non_finite=skips)
    assert differences(train(alone, loader=spoilt()), train(callback, loader=spoilt())) == []
    (error,) = find_errors(good)
    assert error.layer == "BrokenSink"
    assert len(good.records) == len(quiet.records) == 14
    assert len(good.findings) == len(quiet.findings) + 1


class BrokenLogger(CSVLogger):
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        raise OSError("no space left on device")


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
def test_a_logger_that_raises_is_told_once(
    bare: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    callback, sink = watcher()
    assert differences(bare, train(callback, logger=BrokenLogger("."))) == []
    told = [text for text in caplog.messages if "no space left on device" in text]
    assert len(told) == 1
    assert "training goes on" in told[0]
    assert len(sink.records) == 14


def test_a_state_that_does_not_fit_is_told_and_its_part_starts_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    callback, sink = watcher()
    callback.load_state_dict({"gradient_flow": {"of another": "version"}})
    assert "gradient_flow starts anew, its state: KeyError" in caplog.text
    train(callback)
    assert len(sink.records) == 14


def fit_spoilt(callback: GradWatch, make: Callable[[], Any] = Net) -> tuple[Any, pl.Trainer]:
    module = build(make)
    return module, fit(module, [callback], spoilt(), max_epochs=1)


def test_a_replay_that_fails_does_not_lose_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay._Investigation, "run", explode)
    callback, sink = watcher(non_finite=NonFiniteOptions(policy="skip"))
    _, trainer = fit_spoilt(callback)
    (finding,) = [found for found in sink.findings if found.rule == "non_finite"]
    assert trainer.global_step == 7
    assert "inside the monitor" in " ".join(finding.lines())
    assert find_errors(sink) == []


def test_a_training_step_that_breaks_when_run_again_does_not_lose_the_verdict() -> None:
    class Once(Net):
        ran: set[int]

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.ran = getattr(self, "ran", set())
            key = int(self.trainer.global_step)
            if batch_idx == 1 and key in self.ran:
                raise MemoryError("not a second time")
            self.ran.add(key)
            return super().training_step(batch, batch_idx)

    callback, sink = watcher(non_finite=NonFiniteOptions(policy="skip"))
    module, _ = fit_spoilt(callback, Once)
    (finding,) = [found for found in sink.findings if found.rule == "non_finite"]
    assert "not a second time" in " ".join(finding.lines())
    assert all(torch.isfinite(each).all() for each in module.parameters())


def test_a_configuration_error_is_not_contained() -> None:
    callback = GradWatch(console=False, record=False, adaptive_lr=True, sinks=[MemorySink()])
    assert AdaptiveLearningRate.name in {part.name for part in callback.parts}
    with pytest.raises(ConfigurationError, match="LBFGS evaluates its closure several times"):
        fit(build(lambda: Net(torch.optim.LBFGS)), [callback])
    assert make_sgd(build(Net).parameters()).defaults["lr"] == 0.05
