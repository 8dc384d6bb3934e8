"""One way to run a faulty model, twice: through a Trainer with GradWatch, and in a plain loop."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from gradwatch import Finding, MemorySink, NonFiniteGradientError, NonFiniteOptions, watch
from gradwatch.callbacks import GradWatch

Loss = Callable[[nn.Module, Any], Tensor]
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def regression(model: nn.Module, batch: Any) -> Tensor:
    """Give the mean squared error of a batch of inputs and targets."""
    return functional.mse_loss(model(batch[0]), batch[1])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Give the plainest optimizer, which moves by the gradient and nothing else."""
    return torch.optim.SGD(parameters, lr=0.1)


class Outcome(NamedTuple):
    """What a run came to."""

    model: nn.Module
    sink: MemorySink
    findings: tuple[Finding, ...]
    error: NonFiniteGradientError | None

    def only(self, rule: str) -> Finding:
        """Give the one finding of a rule; everything is shown where there is not one."""
        found = [finding for finding in self.findings if finding.rule == rule]
        assert len(found) == 1, [finding.lines()[0] for finding in self.findings]
        return found[0]

    @property
    def alarms(self) -> list[str]:
        """Everything told that is more than information."""
        return [f.lines()[0] for f in self.findings if f.severity != "info"]


class Task(pl.LightningModule):
    """Train ``net`` on whatever loss it is handed."""

    def __init__(self, net: nn.Module, loss: Loss, make_optimizer: MakeOptimizer) -> None:
        super().__init__()
        self.net, self.loss, self.make_optimizer = net, loss, make_optimizer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.net(*args, **kwargs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make_optimizer(self.parameters())


class Carrier(nn.Module):
    """Hold ``net`` under the name it has in a task."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.net(*args, **kwargs)


def make_trainer(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    """Give a quiet Trainer that records every step."""
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 1,
        "log_every_n_steps": 1,
    }
    return pl.Trainer(callbacks=list(callbacks), **{**quiet, **options})


def make_scaled(scale: float) -> MixedPrecision:
    """Give half precision with a gradient scaler, on a CPU."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))


def watched_options(policy: str, options: dict[str, Any]) -> dict[str, Any]:
    """Complete the options of a watch with a policy, an own sink and a quiet console."""
    chosen: Any = policy
    limits = NonFiniteOptions(policy=chosen, checkpoint=False)
    return {"non_finite": limits, "console": False, **options}


def through_lightning(
    net: nn.Module,
    batches: Sequence[Any],
    *,
    loss: Loss = regression,
    optimizer: MakeOptimizer = sgd,
    policy: str = "raise",
    accumulate: int = 1,
    scale: float | None = None,
    **options: Any,
) -> Outcome:
    """Run batches through a Trainer with GradWatch."""
    sink = MemorySink()
    guard = GradWatch(sinks=[sink], record=False, **watched_options(policy, options))
    plugins: Any = [] if scale is None else [make_scaled(scale)]
    trainer = make_trainer(guard, plugins=plugins, accumulate_grad_batches=accumulate)
    task, error = Task(net, loss, optimizer), None
    data: Any = list(batches)
    try:
        trainer.fit(task, DataLoader(data, batch_size=None))
    except NonFiniteGradientError as stopped:
        error = stopped
    return Outcome(task, sink, guard.findings, error)


def through_plain_loop(
    net: nn.Module,
    batches: Sequence[Any],
    *,
    loss: Loss = regression,
    optimizer: MakeOptimizer = sgd,
    policy: str = "raise",
    accumulate: int = 1,
    scale: float | None = None,
    **options: Any,
) -> Outcome:
    """Run the same batches in a loop of one's own, watched."""
    sink, model = MemorySink(), Carrier(net)
    moved = optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=scale is not None, init_scale=scale or 1.0)
    half = torch.autocast("cpu", torch.float16, enabled=scale is not None)
    chosen = watched_options(policy, options)
    error = None
    with watch(model, moved, scaler=scaler, sinks=[sink], log_every_n_steps=1, **chosen) as watched:
        try:
            for number, batch in enumerate(batches):
                with half:
                    value = watched.loss(loss(model, batch))
                scaler.scale(value / accumulate).backward()
                if (number + 1) % accumulate == 0 or number + 1 == len(batches):
                    scaler.step(moved)
                    scaler.update()
                    moved.zero_grad()
        except NonFiniteGradientError as stopped:
            error = stopped
    return Outcome(model, sink, watched.findings, error)


def unwatched(
    net: nn.Module, batches: Sequence[Any], *, loss: Loss = regression, optimizer: Any = sgd
) -> nn.Module:
    """Run batches with nothing watching."""
    model = Carrier(net)
    moved = optimizer(model.parameters())
    for batch in batches:
        loss(model, batch).backward()
        moved.step()
        moved.zero_grad()
    return model


Run = Callable[..., Outcome]


@pytest.fixture(params=[through_lightning, through_plain_loop], ids=["lightning", "plain"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a model both ways, a test each."""
    way: Run = request.param
    return way


@pytest.fixture
def trainer() -> Callable[..., pl.Trainer]:
    """Hand out quiet Trainers."""
    return make_trainer


@pytest.fixture
def scaled() -> Callable[[float], MixedPrecision]:
    """Hand out half precision with a gradient scaler."""
    return make_scaled


@pytest.fixture
def bare() -> Callable[..., nn.Module]:
    """Run a model with nothing watching."""
    return unwatched


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Callable[[str, str, str], None]:
    """Note what was expected of a case and what gradwatch said, for the table in the docs."""

    def note(case: str, expected: str, got: str) -> None:
        record_property("case", json.dumps([case, expected, got]))

    return note
