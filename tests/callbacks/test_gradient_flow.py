"""The norms a Trainer's run is told: accumulated, unscaled, before and after clipping."""

from functools import partial
from typing import Any

import pytest
import torch

from gradwatch import MemorySink
from gradwatch.callbacks import GradientFlowMonitor
from tests.kit import Calm, build, fit, make_half

ADAM = partial(Calm, partial(torch.optim.Adam, lr=1e-3))
FUSED = partial(Calm, partial(torch.optim.Adam, lr=1e-3, fused=True))


class Clipped(Calm):
    """Note the true total norm before and after Lightning's own clipping."""

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        self.norms = getattr(self, "norms", [])
        before = measure_slowly(self)
        super().configure_gradient_clipping(*args, **kwargs)
        self.norms.append((before, measure_slowly(self)))


class Looks(Calm):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.norms = getattr(self, "norms", [])
        self.norms.append(measure_slowly(self))


def measure_slowly(module: torch.nn.Module) -> float:
    grads = [p.grad.double().flatten() for p in module.parameters() if p.grad is not None]
    return float(torch.cat(grads).norm())


def told(make: Any, **options: Any) -> tuple[Any, list[dict[str, float]]]:
    sink = MemorySink()
    module = build(make)
    fit(module, [GradientFlowMonitor(sinks=[sink])], log_every_n_steps=1, max_epochs=1, **options)
    return module, [dict(record.scalars) for record in sink.records]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_norm_is_that_of_the_accumulated_gradient(accumulate: int) -> None:
    module, scalars = told(Looks, accumulate_grad_batches=accumulate)
    norms = [each["grad/norm"] for each in scalars]
    assert norms == pytest.approx(module.norms, rel=1e-5)
    assert len(norms) == -(-7 // accumulate)


@pytest.mark.parametrize(
    "clipping",
    [
        {"gradient_clip_val": 0.3},
        {"gradient_clip_val": 100.0},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    ],
    ids=["by norm", "by a norm never reached", "by value"],
)
def test_the_norms_before_and_after_clipping_are_both_told(clipping: dict[str, Any]) -> None:
    module, scalars = told(Clipped, **clipping)
    before, after = zip(*module.norms, strict=True)
    assert [each["grad/norm"] for each in scalars] == pytest.approx(before, rel=1e-5)
    assert [each["grad/norm_clipped"] for each in scalars] == pytest.approx(after, rel=1e-5)


def test_the_clip_rate_is_the_share_of_steps_that_were_cut() -> None:
    module, scalars = told(Looks, gradient_clip_val=3.0)
    cut = [norm > 3.0 for norm in module.norms]
    assert 0 < sum(cut) < len(cut)
    rates = [sum(cut[: step + 1]) / (step + 1) for step in range(7)]
    assert [each["grad/clip_rate"] for each in scalars] == pytest.approx(rates)


@pytest.mark.parametrize("make", [ADAM, FUSED], ids=["unscaled by Lightning", "by the optimizer"])
def test_a_loss_scale_is_not_in_the_norms(make: Any) -> None:
    _, plain = told(ADAM)
    _, scaled = told(make, plugins=[make_half(4096.0)])
    expected = [each["grad/norm"] for each in plain]
    assert [each["grad/norm"] for each in scaled] == pytest.approx(expected, rel=2e-2)


def test_the_update_ratio_is_that_of_the_true_update() -> None:
    sink = MemorySink()
    module = build(partial(Calm, partial(torch.optim.SGD, lr=0.5)))
    weights = module.head.weight.detach().clone(), module.head.bias.detach().clone()
    fit(module, [GradientFlowMonitor(sinks=[sink])], log_every_n_steps=1, max_steps=1)
    moved = [
        (now - old).detach() for now, old in zip(module.head.parameters(), weights, strict=True)
    ]
    size = torch.cat([each.flatten() for each in weights]).norm()
    ratio = float(torch.cat([each.flatten() for each in moved]).norm() / size)
    flow = sink.records[0].flow
    assert flow is not None
    assert flow.update_ratio is not None
    assert flow.update_ratio[flow.layers.index("head")] == pytest.approx(ratio, rel=1e-4)


def test_layers_stand_in_the_order_they_ran_with_what_was_seen_of_them() -> None:
    sink = MemorySink()
    fit(build(Calm), [GradientFlowMonitor(sinks=[sink])], max_steps=1)
    flow = sink.records[0].flow
    assert flow is not None
    assert flow.layers == ("conv", "bn", "hidden", "norm", "head")
    seen = {cover.layer: cover.state for cover in sink.coverage}
    assert seen["head"] == "hooked"
    assert next(c.reason for c in sink.coverage if c.layer == "bn") == "never called"
