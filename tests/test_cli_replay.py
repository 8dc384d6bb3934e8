"""What a run kept is replayed by the command line: same layer, same operation, same verdict."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from gradwatch import NonFiniteGradientError, NonFiniteOptions, watch
from gradwatch.cli import ANOTHER, BAD_USE, SAME, main, run_replay
from gradwatch.non_finite.blame import (
    NO_REPLAY,
    NOT_REPRODUCIBLE,
    NOT_RESTORABLE,
    ONLY_COMPILED,
    REPRODUCIBLE,
)
from gradwatch.non_finite.verdicts import MEANINGS, meaning_of
from tests.kit import build, fit, make_half, watcher

ROOT = Path(__file__).parents[1]
BORN = "born in net.3, backward of aten::sqrt"
SAME_TWICE = "verdict: the same fault (then: reproducible; now: reproducible)"


class Rooted(nn.Module):
    """The root of what a mask has set to zero: finite forward, infinite derivative."""

    def __init__(self, eps: float = 0.0) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x * (x > 0) + self.eps)


def make_net(eps: float = 0.0) -> nn.Sequential:
    first = (nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), Rooted(eps))
    return nn.Sequential(*first, nn.LayerNorm(6), nn.Linear(6, 1))


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, x: Tensor, *, shift: float) -> Tensor:
        out: Tensor = self.net(x + shift)
        return out


class Lit(pl.LightningModule):
    """Draws from every generator and logs in every way."""

    def __init__(self, scale: float = 1.0, eps: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net, self.mean = make_net(eps), MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        noise = random.random() + float(np.random.rand())  # noqa: NPY002, S311
        out = self.net(batch["x"]).float()
        # On the loss: a shift of the input would be taken out again by the batch norm.
        loss = (out - batch["y"]).pow(2).mean() * self.hparams["scale"] * (1 + noise)
        self.mean(loss.detach())
        self.log("loss", loss, prog_bar=True)
        self.log_dict({"mean": self.mean, "epoch": float(self.current_epoch)})
        if self.logger is not None:
            self.logger.experiment.add_scalar("loss", loss)  # type: ignore[attr-defined]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class ByHand(Lit):
    """The second of two optimizer steps of a batch fails."""

    def __init__(self, scale: float = 1.0, eps: float = 0.0) -> None:
        super().__init__(scale, eps)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        for loss_of in (lambda: self.net[5](batch["h"]).mean(), lambda: self._loss(batch)):
            optimizer.zero_grad()
            self.manual_backward(loss_of())
            optimizer.step()

    def _loss(self, batch: Any) -> Tensor:
        return super().training_step(batch, 0)


def make_mended() -> Lit:
    return Lit(scale=3.0, eps=1e-3)


def make_plain() -> nn.Module:
    return Wrapped()


def make_failing() -> nn.Module:
    message = "no weights on this machine"
    raise OSError(message)


class WithParts(Lit):
    """Made with something that is no primitive; it has a default for it."""

    def __init__(self, scale: float = 1.0, eps: float = 0.0, act: Any = None) -> None:
        super().__init__(scale, eps)
        self.act = act or torch.tanh
        self.save_hyperparameters()


def make_choking() -> nn.Module:
    class Choking(Wrapped):
        def forward(self, x: Tensor, *, shift: float) -> Tensor:
            message = "this code has moved on"
            raise ValueError(message)

    return Choking()


def make_narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 2))


def make_batches(count: int = 4) -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    sizes = {"x": 4, "y": 1, "h": 6}
    return [{name: torch.randn(8, size) for name, size in sizes.items()} for _ in range(count)]


def keep_lightning(make: Callable[[], Any] = lambda: Lit(scale=3.0), **options: Any) -> Path:
    """Train until the fault stops the run; give the bundle."""
    data: Any = torch.utils.data.DataLoader(make_batches(), batch_size=None)  # type: ignore[arg-type]
    callback, sink = watcher(non_finite=NonFiniteOptions(scaler_patience=2))
    if "plugins" in options:
        fit(build(make), [callback], data, **options)
    else:
        with pytest.raises(NonFiniteGradientError, match=BORN):
            fit(build(make), [callback], data, **options)
    return Path(str(sink.findings[0].evidence["bundle"]))


def keep_plain(*, half: bool = False) -> Path:
    torch.manual_seed(0)
    model = make_plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, console=False) as watched:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = model(torch.randn(8, 4), shift=0.5)
        out.float().pow(2).sum().backward()
        with pytest.raises(NonFiniteGradientError, match=BORN):
            optimizer.step()
    return Path(str(watched.findings[0].evidence["bundle"]))


def call(bundle: Path, model: str) -> tuple[int, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "gradwatch.cli", "replay", str(bundle), "--model", model]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    return done.returncode, done.stdout + done.stderr


def assert_told_twice(output: str) -> None:
    """The layer, the operation and the verdict stand there for then and for now."""
    then, now = output.split("replayed now")
    assert BORN in then
    assert BORN in now
    assert "replayed  reproducible" in then
    assert "replayed  reproducible" in now
    assert SAME_TWICE in now


def test_a_lightning_run_is_replayed_by_another_process() -> None:
    bundle = keep_lightning(accumulate_grad_batches=2)
    code, output = call(bundle, "tests.test_cli_replay:Lit")
    assert code == SAME, output
    assert_told_twice(output)
    assert output.startswith("told then")
    assert "micro-batch 1 of 2" in output.split("replayed now")[1]
    assert output.splitlines()[-1].startswith("next: ")


def test_a_plain_loop_is_replayed_by_another_process() -> None:
    code, output = call(keep_plain(), "tests.test_cli_replay:make_plain")
    assert code == SAME, output
    assert_told_twice(output)


KINDS: dict[str, tuple[str, Callable[[], Path]]] = {
    "plain, autocast": ("make_plain", lambda: keep_plain(half=True)),
    "bfloat16": ("Lit", lambda: keep_lightning(precision="bf16-mixed")),
    "a scaler": ("Lit", lambda: keep_lightning(plugins=[make_half()])),
    "a part as hyperparameter": (
        "WithParts",
        lambda: keep_lightning(lambda: WithParts(scale=3.0, act=torch.sin)),
    ),
    "manual optimization": ("ByHand", lambda: keep_lightning(lambda: ByHand(scale=3.0))),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_same_fault_is_found_under(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    factory, keep = KINDS[name]
    bundle = keep()
    capsys.readouterr()
    assert run_replay(bundle, f"tests.test_cli_replay:{factory}") == SAME
    assert_told_twice(capsys.readouterr().out)


def test_each_verdict_is_told_with_what_it_means_and_what_to_do() -> None:
    verdicts = (REPRODUCIBLE, NOT_RESTORABLE, NOT_REPRODUCIBLE, ONLY_COMPILED, NO_REPLAY)
    assert MEANINGS.keys() == set(verdicts)
    assert all(each.means and each.next_step for each in MEANINGS.values())
    assert meaning_of(f"{NO_REPLAY}: out of memory: 3 GiB") == MEANINGS[NO_REPLAY]


def test_a_mended_model_does_not_show_the_fault(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = keep_lightning()
    assert run_replay(bundle, "tests.test_cli_replay:make_mended") == ANOTHER
    assert "verdict: not the fault that was told then" in capsys.readouterr().out


def test_other_random_numbers_show_as_a_state_that_is_not_restored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = keep_lightning()
    saved = torch.load(bundle, weights_only=True)
    # Whatever was drawn before in this process: other words at the same place.
    saved["random"]["numpy"]["key"] = saved["random"]["numpy"]["key"].flip(0)
    torch.save(saved, bundle)
    run_replay(bundle, "tests.test_cli_replay:Lit")
    output = capsys.readouterr().out
    assert "now: state not restorable)" in output
    assert "means: the replayed loss is not the original, bit for bit" in output
    assert "next: look for state that the step itself moves" in output


def test_a_step_that_raises_is_not_called_not_reproduced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_replay(keep_plain(), "tests.test_cli_replay:make_choking") == BAD_USE
    output = capsys.readouterr().out
    assert "verdict: the step could not be run" in output
    assert "this code has moved on" in output


def keep_text() -> Path:
    path = Path("notes.txt")
    path.write_text("no bundle")
    return path


BAD = {
    "a name without a colon": ("tests.test_cli_replay", "package.module:factory", keep_plain),
    "a module that is not there": ("no_such_module:make", "cannot be imported", keep_plain),
    "a mistyped factory": (
        "tests.test_cli_replay:make_plan",
        "nearest: 'make_plain'",
        keep_plain,
    ),
    "a factory that fails": (
        "tests.test_cli_replay:make_failing",
        "the factory failed: OSError: no weights on this machine",
        keep_plain,
    ),
    "a factory that makes no module": ("tests.test_cli_replay:make_batches", "list", keep_plain),
    "a model that does not fit": (
        "tests.test_cli_replay:make_narrow",
        "the model does not fit the bundle",
        keep_plain,
    ),
    "a plain module for a training step": (
        "tests.test_cli_replay:make_plain",
        "of a LightningModule",
        keep_lightning,
    ),
    "a file that is no bundle": ("tests.test_cli_replay:Lit", "cannot be read", keep_text),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_use_says_what_is_wrong(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, message, keep = BAD[name]
    bundle = keep()
    assert run_replay(bundle, model) == BAD_USE
    assert message in capsys.readouterr().err


def test_without_typer_the_install_line_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == BAD_USE
    assert "pip install 'gradwatch[cli]'" in capsys.readouterr().err


def test_the_command_asks_for_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gradwatch", "replay", "step-1.pt"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == BAD_USE
    assert "--model" in capsys.readouterr().err
