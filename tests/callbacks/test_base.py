"""One session for all gradwatch callbacks of a Trainer, in either namespace."""

import sys
from typing import Any

import lightning.pytorch as pl
import pytest
import pytorch_lightning

from gradwatch import MemorySink, NonFiniteOptions
from gradwatch.callbacks import (
    GradientFlowMonitor,
    GradWatch,
    MemoryDeltaMonitor,
    NonFiniteMonitor,
)
from tests.kit import Calm, Net, build, fit, make_loader, watcher

SKIP = NonFiniteOptions(policy="skip")


def test_the_first_callback_owns_the_session_and_all_sinks_are_told_once() -> None:
    sinks = [MemorySink(), MemorySink()]
    first = GradientFlowMonitor(sinks=sinks[:1])
    second = NonFiniteMonitor(SKIP, sinks=sinks[1:])
    fit(build(Net), [first, second], make_loader(28, [6]), max_epochs=1)
    assert [finding.rule for finding in first.findings] == ["non_finite"]
    assert second.findings == ()
    for sink in sinks:
        assert [finding.rule for finding in sink.findings] == ["non_finite"]
        assert sink.closed == 1


def test_state_keys_are_distinct_and_tell_what_is_watched() -> None:
    kinds = (GradientFlowMonitor, MemoryDeltaMonitor, NonFiniteMonitor, GradWatch)
    keys = [kind().state_key for kind in kinds]
    assert len(set(keys)) == 4
    assert keys[0] == "GradientFlowMonitor(gradient_flow)"
    assert keys[3] == "GradWatch(non_finite, gradient_flow, memory_delta, graph, symptoms)"


class OtherNet(pytorch_lightning.LightningModule):
    """The same work in the other namespace, by way of a plain module inside."""

    def __init__(self) -> None:
        super().__init__()
        inner = Calm()
        self.body = inner.hidden
        self.head = inner.head

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x = batch[0].flatten(1).repeat(1, 2)[:, :64]
        return self.head(self.body(x)).square().mean()

    def configure_optimizers(self) -> Any:
        import torch

        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_a_trainer_of_the_other_namespace_is_watched_too() -> None:
    callback, sink = watcher()
    assert isinstance(callback, pytorch_lightning.Callback)
    assert isinstance(callback, pl.Callback)
    trainer = pytorch_lightning.Trainer(
        callbacks=[callback],
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(build(OtherNet), make_loader())
    assert [record.step for record in sink.records] == [0, 6]
    assert {cover.layer for cover in sink.coverage} == {"body", "head"}


def test_the_first_and_the_last_step_are_recorded_whatever_the_interval() -> None:
    callback, sink = watcher()
    fit(build(Net), [callback], log_every_n_steps=1000)
    assert [record.step for record in sink.records] == [0, 13]


def test_steps_between_are_recorded_at_the_trainers_interval() -> None:
    callback, sink = watcher()
    fit(build(Net), [callback], log_every_n_steps=5)
    assert [record.step for record in sink.records] == [0, 4, 9, 13]


@pytest.mark.parametrize("options", [{"fast_dev_run": True}, {"limit_train_batches": 0}])
@pytest.mark.filterwarnings("ignore")
def test_runs_of_one_step_or_none_end_well(options: dict[str, Any]) -> None:
    callback, sink = watcher()
    fit(build(Net), [callback], **options)
    assert callback.findings == ()
    assert len(sink.records) == (1 if "fast_dev_run" in options else 0)


def test_validating_and_testing_open_no_session() -> None:
    class Validated(Net):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self(batch[0])

    callback, sink = watcher()
    trainer = pl.Trainer(
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.validate(build(Validated), make_loader(8), verbose=False)
    assert sink.coverage == []
    assert sink.closed == 0


def test_wandb_is_not_imported_where_no_logger_asks_for_it() -> None:
    modules = set(sys.modules)
    fit(build(Net), [watcher()[0]], max_steps=1)
    assert {name for name in set(sys.modules) - modules if name.startswith("wandb")} == set()
