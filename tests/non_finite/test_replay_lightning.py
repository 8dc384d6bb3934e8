"""A replay under a Trainer is seen by nobody: loggers, metrics, progress, loader, W&B."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from gradwatch import MemorySink, NonFiniteGradientError, NonFiniteOptions
from gradwatch.callbacks import NonFiniteMonitor
from gradwatch.non_finite.bundle_replay import replay_bundle
from tests.kit import Calm, SkipsByHand, build, differences, fingerprint, fit, make_samples

BAD = (6, 17)


class Rows(Logger):
    """Keep every row, whether it comes from self.log or from the experiment itself."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []
        self.direct: list[float] = []

    name = version = "rows"

    @property
    def experiment(self) -> "Rows":
        return self

    def add_scalar(self, value: float) -> None:
        self.direct.append(value)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append(dict(metrics))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


class Counting:
    """Count the batches that are asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for batch in zip(*(part.split(4) for part in make_samples(28, BAD)), strict=True):
            self.asked += 1
            yield batch


class Logs(Calm):
    """Logs in every way a training step can, and keeps two metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.accuracy = MeanMetric(), MulticlassAccuracy(3)
        self.calls = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.calls += 1
        out = self(batch[0])
        loss = F.cross_entropy(out, batch[1])
        finite = loss.detach().nan_to_num()
        self.mean(finite)
        self.accuracy(out.detach().nan_to_num(), batch[1])
        self.log("loss", finite, on_step=True, on_epoch=True, prog_bar=True)
        self.log_dict({"mean": self.mean, "accuracy": self.accuracy}, on_epoch=True)
        rows: Any = self.logger
        rows.experiment.add_scalar(float(finite))
        self.losses.append(loss.detach().clone())
        return loss


def traces(callbacks: list[Any]) -> dict[str, Any]:
    module, rows, loader = build(Logs), Rows(), Counting()
    trainer = fit(module, callbacks, loader, logger=rows, log_every_n_steps=1)  # type: ignore[arg-type]
    return {
        **fingerprint(trainer, module),
        "rows": [{k: v for k, v in row.items() if not k.startswith("grad")} for row in rows.rows],
        "direct": rows.direct,
        "metrics": {**vars(module.mean)["_defaults"], "count": module.mean._update_count},
        "mean": module.mean.compute(),
        "calls": module.calls,
        "asked": loader.asked,
        "progress": trainer.fit_loop.state_dict(),
        "shown": {name: float(each) for name, each in trainer.progress_bar_metrics.items()},
    }


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric MeanMetric was called before")
def test_loggers_metrics_progress_and_loader_are_those_of_a_skip_by_hand() -> None:
    sink = MemorySink()
    monitor = NonFiniteMonitor(NonFiniteOptions(policy="skip"), sinks=[sink])
    by_hand, watched = traces([SkipsByHand()]), traces([monitor])
    # The monitor's own rows are empty but for its scalars.
    watched["rows"] = [row for row in watched["rows"] if row.keys() - {"epoch"}]
    by_hand["rows"] = [row for row in by_hand["rows"] if row.keys() - {"epoch"}]
    assert differences(by_hand, watched) == []
    assert len(watched["direct"]) == watched["calls"] == 14
    assert [finding.evidence["replay"] for finding in sink.findings] == ["reproducible"] * 4


def test_a_row_sent_to_wandb_by_the_training_step_is_sent_once() -> None:
    class Sends(Calm):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            assert wandb.run is not None
            wandb.log({"direct": batch_idx}, commit=False)
            wandb.run.log({"loss": float(loss.detach())})
            return loss

    with wandb.init(mode="offline", project="replays") as run:
        with pytest.raises(NonFiniteGradientError) as caught:
            fit(build(Sends), [NonFiniteMonitor()], Counting())  # type: ignore[arg-type]
        assert caught.value.finding.evidence["replay"] == "reproducible"
        assert run.step == 2
        wandb.log({"after": 1})
        assert run.step == 3


class Rooted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x * (x > 0))


class Gan(Calm):
    """Two optimizers by hand; the generator's fourth layer fails in the second turn."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        first = (nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 36))
        self.generator = nn.Sequential(*first, Rooted(), nn.LayerNorm(36), nn.Linear(36, 36))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        critic, maker = self.optimizers()  # type: ignore[attr-defined]
        for optimizer, own in ((critic, True), (maker, False)):
            self.toggle_optimizer(optimizer)
            noise = self.generator(torch.randn(len(batch[0]), 5)).view(-1, 1, 6, 6)
            shown = batch[0] if own else noise
            loss = F.cross_entropy(self(shown), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        own = [p for name, p in self.named_parameters() if not name.startswith("generator")]
        return torch.optim.SGD(own, lr=0.05), torch.optim.Adam(self.generator.parameters())


class Newton(Calm):
    """LBFGS evaluates the training step several times a step; the fifth evaluation fails."""

    def __init__(self) -> None:
        super().__init__(lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3))
        self.root = Rooted()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.root(self.hidden(self.act(self.conv(x)).flatten(1))))
        out: Tensor = self.head(h)
        return out


@pytest.mark.parametrize(("make", "layer"), [(Gan, "generator.3"), (Newton, "root")])
def test_a_replay_names_the_layer_also_where_the_loop_is_another(make: Any, layer: str) -> None:
    samples = torch.utils.data.TensorDataset(*make_samples(8))
    loader = torch.utils.data.DataLoader(samples, batch_size=4)
    with pytest.raises(NonFiniteGradientError, match="backward of aten::sqrt") as caught:
        fit(build(make), [NonFiniteMonitor()], loader)
    assert caught.value.finding.layer == layer
    assert caught.value.finding.evidence["replay"] == "reproducible"
    again = replay_bundle(Path(str(caught.value.finding.evidence["bundle"])), make)
    assert (again.same, again.now.layer, again.verdict_now) == (True, layer, "reproducible")
