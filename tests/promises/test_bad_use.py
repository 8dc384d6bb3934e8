"""What cannot be meant is refused where the user writes it, with the way out."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwatch import (
    AdaptiveLearningRateOptions,
    ConfigurationError,
    GradientFlowOptions,
    NonFiniteOptions,
    watch,
)
from gradwatch.callbacks import (
    AdaptiveLearningRate,
    GradientFlowMonitor,
    GradWatch,
    MemoryDeltaMonitor,
    NonFiniteMonitor,
)
from gradwatch.session_options import SessionOptions
from tests.kit import Net, build, fit

LBFGS = partial(Net, torch.optim.LBFGS)
OPTIONS: dict[str, tuple[Callable[[], object], str]] = {
    "an unknown policy": (
        lambda: NonFiniteOptions(policy="rase"),  # type: ignore[arg-type]
        r"policy must be one of 'raise', 'skip', 'warn'; got 'rase' \(nearest: 'raise'",
    ),
    "no skips at all": (
        lambda: NonFiniteOptions(max_skips=0),
        "max_skips must be a positive, finite number; got 0",
    ),
    "a negative patience": (
        lambda: NonFiniteOptions(scaler_patience=-1),
        "scaler_patience must be a positive, finite number; got -1",
    ),
    "a negative interval": (
        lambda: GradientFlowOptions(cooldown=-5),
        "cooldown must be a positive, finite number; got -5",
    ),
    "a target of zero": (
        lambda: AdaptiveLearningRateOptions(target=0.0),
        "target must be a positive, finite number; got 0.0",
    ),
    "a target that is no number": (
        lambda: AdaptiveLearningRateOptions(target=float("nan")),
        "target must be a positive, finite number; got nan",
    ),
    "an unknown rule": (
        lambda: AdaptiveLearningRateOptions(rule="inversed"),  # type: ignore[arg-type]
        r"rule must be one of 'inverse', 'proportional'; got 'inversed' \(nearest: 'inverse'",
    ),
    "bounds the wrong way round": (
        lambda: AdaptiveLearningRateOptions(bounds=(2.0, 0.5)),
        r"bounds must be two positive, finite numbers, the smaller first; got \(2.0, 0.5\)",
    ),
    "a pattern instead of patterns": (
        lambda: GradientFlowOptions(layers="encoder.*"),  # type: ignore[arg-type]
        r"layers takes a sequence of patterns such as \('\*',\); got 'encoder.\*'",
    ),
    "a ratio above one": (
        lambda: GradientFlowOptions(vanishing=2.0),
        "vanishing is a ratio between 0 and 1; got 2.0",
    ),
    "an unknown kind of hook": (
        lambda: GradWatch(backward_hooks="every-step"),  # type: ignore[arg-type]
        r"backward_hooks must be one of .*; got 'every-step' \(nearest: 'every_step'",
    ),
    "an unknown kind of hook for one monitor": (
        lambda: NonFiniteMonitor(measuring=SessionOptions(backward_hooks="full")),  # type: ignore[arg-type]
        "backward_hooks must be one of 'sampled', 'every_step', 'module'; got 'full'",
    ),
    "no memory for replays": (
        lambda: GradWatch(byte_budget=0),
        "byte_budget must be a positive, finite number; got 0",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_refused_where_it_is_written(name: str) -> None:
    make, message = OPTIONS[name]
    with pytest.raises(ConfigurationError, match=message):
        make()


AT_SETUP: dict[str, tuple[Callable[[], Any], Callable[[], list[Any]], str]] = {
    "a pattern that matches nothing": (
        Net,
        lambda: [GradWatch(gradient_flow=GradientFlowOptions(layers=("hiden",)))],
        "layers: 'hiden' matches no layer .nearest: 'hidden'",
    ),
    "GradWatch beside one of its parts": (
        Net,
        lambda: [GradWatch(), GradientFlowMonitor()],
        "two callbacks watch 'gradient_flow': GradWatch and GradientFlowMonitor. Keep one",
    ),
    "two of one kind": (
        Net,
        lambda: [NonFiniteMonitor(), NonFiniteMonitor()],
        "Found more than one stateful callback of type `NonFiniteMonitor`",
    ),
    "an adaptive rate with several evaluations a step": (
        LBFGS,
        lambda: [AdaptiveLearningRate()],
        "adaptive_lr: LBFGS evaluates its closure several times in one step",
    ),
}


@pytest.mark.parametrize("name", AT_SETUP)
def test_a_combination_is_refused_before_the_first_step(name: str) -> None:
    make, callbacks, message = AT_SETUP[name]
    module = build(make)
    with pytest.raises((ConfigurationError, RuntimeError), match=message):
        fit(module, callbacks())
    assert module.losses == []


class AddsInPlace(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.bn(self.conv(x))
        h += 1.0
        out: Tensor = self.head(self.norm(self.hidden(h.flatten(1))))
        return out


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("in_place", ["ReLU", "+="])
def test_an_in_place_operation_under_torchs_own_hooks_is_explained(in_place: str) -> None:
    make = Net if in_place == "ReLU" else AddsInPlace
    with pytest.raises(ConfigurationError, match='Use backward_hooks="sampled" or "every_step"'):
        fit(build(make), [GradWatch(console=False, record=False, backward_hooks="module")])


def test_a_plain_loop_refuses_the_same() -> None:
    module = build(Net)
    optimizer = torch.optim.LBFGS(module.parameters())
    with pytest.raises(ConfigurationError, match="adaptive_lr: LBFGS evaluates"):
        watch(module, optimizer, adaptive_lr=True, console=False)
    with pytest.raises(ConfigurationError, match="log_every_n_steps must be a positive"):
        watch(module, optimizer, log_every_n_steps=-1, console=False)
    flow = GradientFlowOptions(layers=("haed",))
    with pytest.raises(ConfigurationError, match=r"'haed' matches no layer .nearest: 'head'"):
        watch(module, optimizer, gradient_flow=flow, console=False)
    assert not any(part._forward_hooks for part in module.modules())


def test_all_parts_side_by_side_are_accepted() -> None:
    kinds = (AdaptiveLearningRate, GradientFlowMonitor, MemoryDeltaMonitor, NonFiniteMonitor)
    trainer = fit(build(Net), [kind() for kind in kinds], max_epochs=1)
    assert trainer.global_step == 7
