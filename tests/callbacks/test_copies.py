"""Any callback copies and pickles at any time, and drags no model along."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest

from gradwatch import AdaptiveLearningRateOptions, FusedBackwardOptions
from gradwatch.callbacks import (
    FusedBackward,
    GradientFlowMonitor,
    GradWatch,
    MemoryDeltaMonitor,
    NonFiniteMonitor,
    RooflineMonitor,
)
from gradwatch.callbacks.base import MonitorCallback
from tests.kit import Net, build, fit, make_loader

FUSED = FusedBackwardOptions(mode="force", after_steps=2, providers=("torch",))
KINDS: dict[str, Callable[[], MonitorCallback]] = {
    "everything": lambda: GradWatch(
        adaptive_lr=AdaptiveLearningRateOptions(), roofline=True, fused=FUSED, record=False
    ),
    "FusedBackward": lambda: FusedBackward(FUSED),
    "GradientFlowMonitor": GradientFlowMonitor,
    "MemoryDeltaMonitor": MemoryDeltaMonitor,
    "NonFiniteMonitor": NonFiniteMonitor,
    "RooflineMonitor": RooflineMonitor,
}


class Copies(pl.Callback):
    """Copy and pickle a callback in each batch."""

    def __init__(self, watched: MonitorCallback) -> None:
        self.watched = watched
        self.bytes: list[int] = []

    def on_train_batch_end(self, *args: Any) -> None:
        copy.deepcopy(self.watched)
        self.bytes.append(len(pickle.dumps(self.watched)))


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_callback_copies_and_pickles_in_a_fit_and_after_it(kind: str) -> None:
    callback = KINDS[kind]()
    copies = Copies(callback)
    module = build(Net)
    # A model that cannot be pickled: whoever drags it along fails.
    module.trap = lambda: None
    fit(module, [callback, copies], make_loader(), max_steps=8)
    twin = pickle.loads(pickle.dumps(callback))  # noqa: S301 - made in the line itself
    assert [part.name for part in twin.parts] == [part.name for part in callback.parts]
    assert len(copies.bytes) == 8
