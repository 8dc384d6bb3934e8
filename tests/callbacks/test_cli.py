"""LightningCLI: GradWatch and its options from YAML and flags, in both namespaces."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gradwatch.callbacks import GradWatch
from gradwatch.gradient_flow import GradientFlowOptions
from gradwatch.non_finite.policy import NonFiniteOptions

NAMESPACES = ("lightning.pytorch", "pytorch_lightning")
QUIET = """
seed_everything: 1
trainer:
  accelerator: cpu
  max_epochs: 1
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
  callbacks:
"""
CONFIGURED = (
    QUIET
    + """
    - class_path: gradwatch.callbacks.GradWatch
      init_args:
        console: false
        record: false
        memory: false
        backward_hooks: every_step
        non_finite:
          class_path: gradwatch.NonFiniteOptions
          init_args:
            policy: skip
            max_skips: 3
        gradient_flow:
          class_path: gradwatch.GradientFlowOptions
          init_args:
            patience: 7
            layers: ["net.*"]
"""
)
FLAGS = [
    "--seed_everything=1",
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--trainer.logger=false",
    "--trainer.enable_checkpointing=false",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.callbacks=GradWatch",
    "--trainer.callbacks.console=false",
    "--trainer.callbacks.record=false",
    "--trainer.callbacks.adaptive_lr=false",
    "--trainer.callbacks.non_finite.policy=warn",
    "--trainer.callbacks.gradient_flow.patience=9",
]


@pytest.fixture(autouse=True)
def _deprecated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass over what jsonargparse deprecates and Lightning's own code still calls."""
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")


def make_model(namespace: str) -> type[Any]:
    base: Any = importlib.import_module(namespace).LightningModule

    class Model(base):  # type: ignore[misc]
        """Fit random numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return (self.net(batch[0]) - batch[1]).square().mean()

        def train_dataloader(self) -> DataLoader[Any]:
            batches: Any = [(torch.randn(5, 4), torch.randn(5, 3)) for _ in range(3)]
            return DataLoader(batches, batch_size=None)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Model


def run_cli(namespace: str, *args: str) -> Any:
    cli = importlib.import_module(f"{namespace}.cli").LightningCLI
    sys.argv = ["train.py"]
    return cli(make_model(namespace), args=list(args), save_config_callback=None)


def watch_of(cli: Any) -> GradWatch:
    found = [each for each in cli.trainer.callbacks if isinstance(each, GradWatch)]
    assert len(found) == 1
    return found[0]


def options_of(guard: GradWatch) -> dict[str, Any]:
    return {part.name: getattr(part, "options", None) for part in guard.parts}


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_yaml_configures_every_part(namespace: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIGURED)
    guard = watch_of(run_cli(namespace, "fit", "--config", "config.yaml"))
    options = options_of(guard)
    assert options["non_finite"] == NonFiniteOptions(policy="skip", max_skips=3)
    assert options["gradient_flow"] == GradientFlowOptions(patience=7, layers=("net.*",))
    assert "memory" not in options
    assert guard.configuration.options.backward_hooks == "every_step"


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_flags_configure_a_part_by_its_options(namespace: str) -> None:
    guard = watch_of(run_cli(namespace, "fit", *FLAGS))
    options = options_of(guard)
    assert options["non_finite"].policy == "warn"
    assert options["gradient_flow"].patience == 9
    assert "adaptive_lr" not in options
    assert guard.findings == ()


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_help_shows_the_options_and_what_they_mean(
    namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_cli(namespace, "fit", "--trainer.callbacks.help=gradwatch.callbacks.GradWatch")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "--trainer.callbacks.backward_hooks" in shown
    assert "Stop before the weights take in NaN or Inf" in shown


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_value_that_cannot_be_meant_is_refused_by_name(
    namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [flag.replace("policy=warn", "policy=rise") for flag in FLAGS]
    with pytest.raises(SystemExit) as ended:
        run_cli(namespace, "fit", *flags)
    assert ended.value.code != 0
    assert "rise" in capsys.readouterr().err


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_trainer_of_either_namespace_takes_the_same_callback(namespace: str) -> None:
    pl = importlib.import_module(namespace)
    guard = GradWatch(console=False, record=False)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, enable_model_summary=False, callbacks=[guard], **quiet
    )
    module = make_model(namespace)()
    module.net[0].weight.data[0, 0] = float("nan")
    with pytest.raises(RuntimeError, match=r"non_finite in <optimizer>"):
        trainer.fit(module)
