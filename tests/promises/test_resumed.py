"""A resumed run tells the same story as an unbroken one."""

from typing import Any

import pytest
from torch import Tensor
from torch.nn import functional as F

from gradwatch import (
    AdaptiveLearningRateOptions,
    GradientFlowOptions,
    MemorySink,
    NonFiniteOptions,
)
from gradwatch.callbacks import GradWatch
from tests.kit import Net, ResumableLoader, SavesAt, build, differences, fit, make_samples, watcher


class Fading(Net):
    """Its first layers get next to nothing, and two of its batches are bad."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.bn(self.conv(x))).flatten(1)
        h.register_hook(lambda grad: grad * 1e-9) if h.requires_grad else None
        out: Tensor = self.head(self.norm(self.hidden(h)))
        return out

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        # Draws nothing: Lightning's checkpoints hold no random state.
        return F.cross_entropy(self(batch[0]), batch[1])


def make_watch() -> tuple[GradWatch, MemorySink]:
    return watcher(
        non_finite=NonFiniteOptions(policy="skip"),
        gradient_flow=GradientFlowOptions(patience=3, cooldown=6),
        adaptive_lr=AdaptiveLearningRateOptions(warmup_steps=20, patience=3, cooldown_steps=5),
    )


def make_data() -> ResumableLoader:
    return ResumableLoader(make_samples(40, spoil=[6, 33]))


Story = tuple[list[Any], list[Any], dict[str, Any]]


def rounded(value: Any) -> Any:
    """Round to what float32 can tell: the first norms of a run are taken more exactly."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: rounded(own) for name, own in value.items()}
    return [rounded(own) for own in value] if isinstance(value, list | tuple) else value


def tell(callback: GradWatch, sink: MemorySink, since: int) -> Story:
    findings = [finding for finding in sink.findings if finding.step >= since]
    records = [
        [record.step, {k: v for k, v in record.scalars.items() if not k.startswith("mem/")}]
        for record in sink.records
        if record.step >= since
    ]
    return findings, rounded(records), rounded(callback.state_dict())


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Story, Story]:
    callback, sink = make_watch()
    # Made before the fixture that changes into a folder of the test's own.
    path = str(tmp_path_factory.mktemp("run") / "middle.ckpt")
    saves = SavesAt(7, path)
    fit(build(Fading), [callback, saves], make_data(), log_every_n_steps=1)
    unbroken = tell(callback, sink, since=7)
    again, told = make_watch()
    options: dict[str, Any] = {"ckpt_path": path, "log_every_n_steps": 1}
    fit(build(Fading), [again], make_data(), **options)
    return unbroken, tell(again, told, since=7)


def test_the_findings_are_the_same(stories: tuple[Story, Story]) -> None:
    unbroken, resumed = stories
    rules = {finding.rule for finding in unbroken[0]}
    assert {"non_finite", "vanishing"} <= rules
    assert [finding.lines() for finding in resumed[0]] == [f.lines() for f in unbroken[0]]


def test_the_counts_rates_and_averages_are_the_same(stories: tuple[Story, Story]) -> None:
    unbroken, resumed = stories
    assert len(unbroken[1]) == 13
    assert resumed[1] == unbroken[1]
    assert {"grad/skipped", "lr/factor", "lr/snr"} <= unbroken[1][-1][1].keys()
    assert unbroken[1][-1][1]["grad/skipped"] == 4


def test_the_states_are_the_same_at_the_end(stories: tuple[Story, Story]) -> None:
    unbroken, resumed = stories
    assert differences(unbroken[2], resumed[2]) == []
    parts = {"non_finite", "gradient_flow", "adaptive_lr", "memory_delta", "graph", "symptoms"}
    assert set(resumed[2]) == parts


def test_without_its_state_a_run_tells_another_story() -> None:
    callback, sink = make_watch()
    fit(build(Fading), [callback, SavesAt(7)], make_data(), log_every_n_steps=1)
    fresh, told = make_watch()
    fresh.load_state_dict = lambda state_dict: None  # type: ignore[method-assign]
    fit(build(Fading), [fresh], make_data(), ckpt_path="middle.ckpt", log_every_n_steps=1)
    assert tell(fresh, told, since=7)[1] != tell(callback, sink, since=7)[1]


class CountingSink(MemorySink):
    """A sink with a memory, as the one with W&B's alerts."""

    seen = 0

    def record(self, record: Any) -> None:
        super().record(record)
        self.seen += 1

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = state["seen"]


def test_a_sink_with_a_state_goes_on_with_it() -> None:
    sinks = [CountingSink() for _ in range(3)]
    watches = [GradWatch(console=False, record=False, sinks=[sink]) for sink in sinks]
    calm: dict[str, Any] = {"loader": ResumableLoader(make_samples(40)), "log_every_n_steps": 1}
    unbroken = fit(build(Fading), [watches[0], SavesAt(7)], **calm)
    fit(build(Fading), [watches[1]], ckpt_path="middle.ckpt", **calm)
    # A record is complete one step later: of seven steps, six were told when it was saved.
    assert sinks[1].seen == 6 + len(sinks[1].records)
    unbroken.save_checkpoint("end.ckpt")
    fit(build(Fading), [watches[2]], ckpt_path="end.ckpt", max_epochs=3, **calm)
    assert sinks[2].seen == 20 + len(sinks[2].records) == 30


def test_a_sinks_state_that_does_not_fit_is_told_and_it_starts_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = CountingSink()
    callback = GradWatch(console=False, record=False, sinks=[sink])
    callback.load_state_dict({"sinks": {"CountingSink": {"of another": "version"}}})
    calm = ResumableLoader(make_samples(40))
    fit(build(Fading), [callback], calm, max_epochs=1, log_every_n_steps=2)
    assert "CountingSink starts anew, its state: KeyError('seen')" in caplog.text
    assert sink.seen > 0
