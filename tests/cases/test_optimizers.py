"""Several optimizers, clipping, accumulation and rates: each number is the one that is applied."""

import copy
import math
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from gradwatch import AdaptiveLearningRateOptions, MemorySink, NonFiniteOptions
from gradwatch.callbacks import GradWatch

Run = Callable[..., Any]
Note = Callable[[str, str, str], None]
Loader = DataLoader[Any]


class Regression(pl.LightningModule):
    """Fit a network under a scheduler."""

    def __init__(self, net: nn.Module, schedule: Any = None, rate: float = 0.1) -> None:
        super().__init__()
        self.net, self.schedule, self.rate = net, schedule, rate
        self.applied: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.rate)
        # Registered before any callback's hook, so it still sees the rate of the update.
        optimizer.register_step_post_hook(self.note_rate)
        if self.schedule is None:
            return optimizer
        scheduler = {"scheduler": self.schedule(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def note_rate(self, optimizer: Any, *args: Any) -> None:
        self.applied.append(float(optimizer.param_groups[0]["lr"]))


class Adversarial(pl.LightningModule):
    """Two optimizers stepped by hand; the critic's backward leaves gradients in the generator."""

    def __init__(self, width: int = 3, spoil: str = "", toggled: bool = False) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.G, self.D = nn.Linear(4, width), nn.Linear(width, 1)
        self.spoil, self.toggled = spoil, toggled
        self.seen: list[dict[str, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for name, optimizer in zip("GD", self.optimizers(), strict=True):
            if self.toggled:
                self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(self.loss(name, *batch))
            self.seen.append(self.norms())
            optimizer.step()
            if self.toggled:
                self.untoggle_optimizer(optimizer)

    def loss(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        fake = self.D(self.G(x)).mean()
        value: Tensor = -fake if name == "G" else fake - self.D(y).mean()
        if name == self.spoil:
            value = value + torch.sqrt(self.D.weight * 0).sum() * 0
        return value

    def norms(self) -> dict[str, float]:
        def norm(module: nn.Module) -> float:
            grads = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
            return float(torch.cat(grads).norm()) if grads else math.nan

        return {"G": norm(self.G), "D": norm(self.D)}

    def configure_optimizers(self) -> Any:
        rates = (module.parameters() for module in (self.G, self.D))
        return [torch.optim.SGD(parameters, lr=0.1) for parameters in rates], []


class Scheduled(pl.Callback):
    """Note the rate the scheduler leaves behind after each batch."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.rates.append(float(trainer.optimizers[0].param_groups[0]["lr"]))


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def make_loader(count: int, width: int = 3) -> Loader:
    generator = torch.Generator().manual_seed(1)
    batches: Any = [
        (torch.randn(5, 4, generator=generator), torch.randn(5, width, generator=generator))
        for _ in range(count)
    ]
    return DataLoader(batches, batch_size=None)


def make_watch(**options: Any) -> tuple[GradWatch, MemorySink]:
    sink = MemorySink()
    return GradWatch(sinks=[sink], console=False, record=False, **options), sink


def gradient_norm(net: nn.Module, batches: Any, loss_scale: float = 1.0) -> float:
    losses = [(net(x) - y).square().mean() * loss_scale / len(batches) for x, y in batches]
    grads = torch.autograd.grad(sum(losses, torch.zeros(())), list(net.parameters()))
    return float(torch.cat([grad.flatten() for grad in grads]).norm())


@pytest.mark.parametrize(("batches", "accumulate"), [(6, 4), (4, 4), (5, 2)])
def test_one_record_a_step_holds_the_norm_of_the_accumulated_gradient(
    trainer: Run, note: Note, batches: int, accumulate: int
) -> None:
    net, loader = make_net(), make_loader(batches)
    expected = gradient_norm(net, list(loader)[:accumulate])
    guard, sink = make_watch()
    trainer(guard, accumulate_grad_batches=accumulate).fit(Regression(net), loader)
    steps = math.ceil(batches / accumulate)
    assert [record.step for record in sink.records] == list(range(steps))
    assert sink.records[0].scalars["grad/norm"] == pytest.approx(expected, rel=1e-5)
    told = f"{len(sink.records)} records for {steps} steps, norm {expected:.4g}"
    for case in ("c05", "d03"):
        note(case, "one record a step, the accumulated norm", told)


@pytest.mark.parametrize("limit", [1.0, 0.01])
def test_the_norm_before_and_after_clipping_and_the_rate_are_told_apart(
    trainer: Run, note: Note, limit: float
) -> None:
    net, loader = make_net(), make_loader(4)
    net.get_parameter("2.weight").data.mul_(30)
    expected = gradient_norm(net, list(loader)[:1])
    guard, sink = make_watch()
    trainer(guard, gradient_clip_val=limit).fit(Regression(net), loader)
    first = sink.records[0].scalars
    assert first["grad/norm"] == pytest.approx(expected, rel=1e-5)
    assert first["grad/norm_clipped"] == pytest.approx(limit, rel=1e-4)
    assert first["grad/clip_rate"] == 1.0
    note("d04", "both norms and the clip rate", f"{expected:.4g} clipped to {limit:g}, rate 1")


def test_clipping_by_value_is_measured_after_it_happened(trainer: Run) -> None:
    net, loader = make_net(), make_loader(1)
    grads = torch.autograd.grad(
        (net(loader.dataset[0][0]) - loader.dataset[0][1]).square().mean(), list(net.parameters())
    )
    clipped = torch.cat([grad.clamp(-0.01, 0.01).flatten() for grad in grads])
    guard, sink = make_watch()
    options = {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}
    trainer(guard, **options).fit(Regression(net), loader)
    measured = sink.records[0].scalars["grad/norm_clipped"]
    assert measured == pytest.approx(float(clipped.norm()), rel=1e-5)


def test_an_exploding_norm_that_is_clipped_is_told_with_what_it_is_clipped_to(
    trainer: Run,
) -> None:
    class Growing(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) * 1.5**batch_idx

    guard, _ = make_watch()
    trainer(guard, gradient_clip_val=0.1).fit(Growing(make_net(), rate=1e-4), make_loader(40))
    finding = next(each for each in guard.findings if each.rule == "exploding")
    assert finding.evidence["clipped_to"] == pytest.approx(0.1, rel=1e-3)
    assert "clipped to 0.1" in finding.summary


@pytest.mark.parametrize(("width", "toggled"), [(3, False), (5, True)])
def test_each_optimizer_is_told_of_its_own_parameters_only(
    trainer: Run, note: Note, width: int, toggled: bool
) -> None:
    module = Adversarial(width, toggled=toggled)
    guard, sink = make_watch()
    trainer(guard).fit(module, make_loader(4, width))
    pairs = [sink.records[i : i + 2] for i in range(0, len(sink.records), 2)]
    assert len(pairs) == 4
    for number, (generator, critic) in enumerate(pairs):
        assert generator.flow is not None
        assert critic.flow is not None
        assert (generator.flow.layers, critic.flow.layers) == (("G",), ("D",))
        seen = module.seen[2 * number : 2 * number + 2]
        assert generator.scalars["grad/norm/opt0"] == pytest.approx(seen[0]["G"], rel=1e-5)
        assert critic.scalars["grad/norm/opt1"] == pytest.approx(seen[1]["D"], rel=1e-5)
    assert guard.findings == ()
    note("d05", "each optimizer's own parameters", "G under opt0, D under opt1, nothing told")


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_nan_in_the_critics_step_does_not_blame_the_generator(
    trainer: Run, note: Note, policy: Any
) -> None:
    module = Adversarial(spoil="D")
    guard, _ = make_watch(non_finite=NonFiniteOptions(policy=policy, checkpoint=False))
    if policy == "raise":
        with pytest.raises(RuntimeError, match="sqrt"):
            trainer(guard).fit(module, make_loader(2))
    else:
        trainer(guard).fit(module, make_loader(2))
    finding = guard.findings[0]
    assert "G" not in finding.layer
    assert "sqrt" in finding.summary
    assert all(parameter.isfinite().all() for parameter in module.parameters())
    note("d05", "NaN in D's step does not blame G", f"{finding.layer}: {finding.summary}")


SCHEDULES: dict[str, Any] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 50),
    "step": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20, cycle_momentum=False),
    "none": None,
}
HALF = AdaptiveLearningRateOptions(warmup_steps=0, averaging=0.0, bounds=(0.5, 0.5))


@pytest.mark.parametrize("kind", list(SCHEDULES))
def test_the_applied_rate_is_the_scheduled_one_times_the_factor(
    trainer: Run, note: Note, kind: str
) -> None:
    alone = Regression(make_net(), SCHEDULES[kind])
    adapted = copy.deepcopy(alone)
    plain, watched = Scheduled(), Scheduled()
    trainer(plain).fit(alone, make_loader(12))
    trainer(make_watch(adaptive_lr=HALF)[0], watched).fit(adapted, make_loader(12))
    np.testing.assert_allclose(adapted.applied, np.asarray(alone.applied) / 2, rtol=1e-12)
    np.testing.assert_allclose(watched.rates, plain.rates, rtol=1e-12)
    note("d06", "scheduled rate × factor, never compounding", f"{kind}: half of it in all 12 steps")


# torch warns of a scheduler that steps before a first update: here the scaler skipped that one.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("kind", ["exponential", "cosine", "none"])
def test_a_step_the_scaler_skips_leaves_the_rate_to_the_scheduler(
    trainer: Run, scaled: Run, note: Note, kind: str
) -> None:
    alone = Regression(make_net(), SCHEDULES[kind])
    adapted = copy.deepcopy(alone)
    plain, watched = Scheduled(), Scheduled()
    trainer(plain, plugins=[scaled(2.0**21)]).fit(alone, make_loader(12))
    guard = make_watch(adaptive_lr=HALF)[0]
    trainer(guard, watched, plugins=[scaled(2.0**21)]).fit(adapted, make_loader(12))
    assert 0 < len(adapted.applied) < 12
    np.testing.assert_allclose(adapted.applied, np.asarray(alone.applied) / 2, rtol=1e-12)
    np.testing.assert_allclose(watched.rates, plain.rates, rtol=1e-12)
    skipped = 12 - len(adapted.applied)
    note("d20", "rate back before the scheduler", f"{skipped} skipped steps, same schedule")


@pytest.mark.parametrize("rule", ["inverse", "proportional"])
@pytest.mark.parametrize("exclude_1d", [True, False])
def test_zero_norms_leave_the_rate_finite_and_above_zero(
    trainer: Run, note: Note, rule: Any, exclude_1d: bool
) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    options = AdaptiveLearningRateOptions(rule=rule, exclude_1d=exclude_1d, warmup_steps=0)
    guard, sink = make_watch(adaptive_lr=options)
    module = Regression(net)
    trainer(guard).fit(module, make_loader(6))
    assert module.applied[0] == 0.1
    assert all(0 < rate < 1 for rate in module.applied)
    assert all(math.isfinite(v) for record in sink.records for v in record.scalars.values())
    note("d15", "factor 1 where a norm is zero", f"rates of {min(module.applied):.3g} and up")
