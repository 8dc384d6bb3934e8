"""Step time under GradWatch and under its alternatives, interleaved in one run.

Run: python tests/benchmarks/overhead.py [--rounds 12] [--models wide] [--picture runs/overhead.png]

Every variant trains in a process of its own, and one of them runs at a time: a block of steps,
then the next variant's. Each block stands between two blocks of the bare Trainer and is
compared with their mean, so that a machine whose speed drifts does not decide. The time of a
step is all of it: data, forward, backward, update, callbacks, logging to W&B offline.
Legend: B batch, T tokens, F features.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np
import torch
import wandb
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from gradwatch.callbacks import GradWatch

BARE = "nothing"
CLOCKS = {"wall": perf_counter, "cpu": process_time}
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class Setting(NamedTuple):
    """A network, and the shape of its batches."""

    title: str
    network: Callable[[], nn.Module]
    shape: tuple[int, ...]


class Transformer(nn.Module):
    """An encoder with a mean over the tokens."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        options: dict[str, Any] = {"batch_first": True, "dropout": 0.1, "norm_first": True}
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, **options)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x_BTF: Tensor) -> Tensor:
        return self.head(self.body(x_BTF).mean(dim=1))


def cnn() -> nn.Module:
    """Give eight convolutions with batch norm, 16 to 64 channels wide."""
    widths = (3, 16, 16, 32, 32, 32, 64, 64, 64)
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise(widths)):
        stride = 2 if i in {2, 5} else 1
        layers += [nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


SETTINGS = {
    "deep": Setting("transformer, 12 layers x 64", partial(Transformer, 12, 64), (4, 16, 64)),
    "wide": Setting("transformer, 6 layers x 256", partial(Transformer, 6, 256), (8, 32, 256)),
    "cnn": Setting("CNN, 8 convolutions", cnn, (16, 3, 32, 32)),
}


class Training(LightningModule):
    """Train a network on the same random batch for ever."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    """The same batch again and again."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.batch = torch.randn(shape), torch.randint(10, shape[:1])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield self.batch


class Nothing(Callback):
    """Add nothing."""


class IsNanHooks(Callback):
    """What a search for "find NaN gradients" suggests: a full backward hook on every module."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for module in pl_module.modules():
            module.register_full_backward_hook(self.look)

    def look(self, module: nn.Module, _: object, grad_output: tuple[Tensor | None, ...]) -> None:
        for grad in grad_output:
            if grad is not None and torch.isnan(grad).any():
                raise ValueError(type(module).__name__)


class WandbWatch(Callback):
    """What W&B offers: histograms of every gradient, each ``log_freq`` batches."""

    def __init__(self, log_freq: int) -> None:
        self.log_freq = log_freq

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        logger: Any = trainer.logger
        logger.watch(pl_module, log="gradients", log_freq=self.log_freq, log_graph=False)


@dataclass(frozen=True)
class Variant:
    """One way to train."""

    callback: Callable[[], Callback] = Nothing
    options: dict[str, Any] = field(default_factory=dict)


VARIANTS = {
    BARE: Variant(),
    "GradWatch()": Variant(GradWatch),
    "isnan().any() hook per module": Variant(IsNanHooks),
    "WandbLogger.watch, default": Variant(partial(WandbWatch, 100)),
    "WandbLogger.watch, log_freq=1": Variant(partial(WandbWatch, 1)),
    "detect_anomaly": Variant(options={"detect_anomaly": True}),
}


class Baton(Callback):
    """Run a block of steps when told to, and answer with the seconds it took.

    First in the list of callbacks: a step lasts from here to here.
    """

    def __init__(self, pipe: Connection, steps: int, clock: str) -> None:
        self.pipe, self.steps, self.clock = pipe, steps, CLOCKS[clock]
        self.done, self.began = 0, 0.0

    def on_train_batch_start(  # type: ignore[override] # -1 ends an epoch; the types do not say so
        self, trainer: Trainer, *_: object
    ) -> int | None:
        if self.done % self.steps == 0:
            if self.done:
                self.pipe.send(self.clock() - self.began)
            if not self.pipe.recv():
                trainer.should_stop = True
                return -1
            self.began = self.clock()
        self.done += 1
        return None


def train(setting: Setting, name: str, pipe: Connection, args: argparse.Namespace) -> None:
    """Train in a process of its own until told to stop."""
    warnings.filterwarnings("ignore")
    for chatter in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric"):
        logging.getLogger(chatter).setLevel(logging.ERROR)
    wandb.setup(wandb.Settings(silent=True))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    logger = WandbLogger(project="overhead", mode="offline", save_dir=".")
    variant = VARIANTS[name]
    callbacks = [Baton(pipe, args.steps, args.clock), variant.callback()]
    options = {"accelerator": "cpu", "max_epochs": 1, "max_steps": -1, **QUIET, **variant.options}
    trainer = Trainer(logger=logger, callbacks=callbacks, **options)
    batches = DataLoader(Endless(setting.shape), batch_size=None)
    trainer.fit(Training(setting.network()), batches)
    logger.experiment.finish()


class Runner:
    """The processes of one setting; a block of one of them at a time."""

    def __init__(self, setting: Setting, names: Sequence[str], args: argparse.Namespace) -> None:
        # One process imports everything and forks the others, with no thread beside it yet.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__"])
        self._ends: dict[str, Connection] = {}
        self._processes = []
        for name in names:
            self._ends[name], theirs = context.Pipe()
            given = (setting, name, theirs, args)
            self._processes.append(context.Process(target=train, args=given, daemon=True))
            self._processes[-1].start()
            theirs.close()

    def block(self, name: str) -> float:
        """Run a block and give its seconds."""
        self._ends[name].send(True)
        seconds: float = self._ends[name].recv()
        return seconds

    def close(self) -> None:
        """Let every process end by itself."""
        for end in self._ends.values():
            end.send(False)
        for process in self._processes:
            process.join()


class Blocks(NamedTuple):
    """Seconds of a variant's blocks, and of the bare blocks around each."""

    own: list[float]
    bare: list[float]

    def cells(self) -> tuple[str, ...]:
        """Give median and quartiles of the blocks' ratios, and the ratio of the sums."""
        low, middle, high = np.percentile(np.divide(self.own, self.bare), [25, 50, 75])
        whole = sum(self.own) / sum(self.bare)
        return f"{middle:.3f}", f"{low:.3f} to {high:.3f}", f"{whole:.3f}"


def measure(
    setting: Setting, names: Sequence[str], args: argparse.Namespace, tick: Callable[[], object]
) -> tuple[dict[str, Blocks], float]:
    """Give each variant's blocks, and the bare Trainer's median milliseconds a step."""
    runner = Runner(setting, [BARE, *names], args)
    for name in [BARE, *names]:
        runner.block(name)
    blocks = {name: Blocks([], []) for name in names}
    bare = [runner.block(BARE)]
    for name in _order(names, args.rounds):
        own, after = runner.block(name), runner.block(BARE)
        blocks[name].own.append(own)
        blocks[name].bare.append((bare[-1] + after) / 2)
        bare.append(after)
        tick()
    runner.close()
    return blocks, float(np.median(bare)) / args.steps * 1000


def _order(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Give every variant once a round, each round in another order."""
    for _ in range(rounds):
        yield from random.sample(names, len(names))


def report(title: str, blocks: dict[str, Blocks], step_ms: float, steps: int) -> str:
    """Give one setting's table."""
    count = len(next(iter(blocks.values())).own)
    head = f"{title}: {step_ms:.1f} ms a step bare, {count} blocks of {steps} steps each"
    rows: list[tuple[str, ...]] = [("", "median", "quartiles", "whole run")]
    rows += [(name, *own.cells()) for name, own in blocks.items()]
    return "\n".join([head, *(f"  {a:<31}{b:>8}{c:>18}{d:>11}" for a, b, c, d in rows)])


def draw(results: dict[str, dict[str, Blocks]], path: Path) -> None:
    """Draw medians and quartiles on a logarithmic axis, one panel a setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1 + 1.6 * len(results)), layout="constrained")
    panels = figure.subplots(len(results), sharex=True, squeeze=False)[:, 0]
    for axes, (title, blocks) in zip(panels, results.items(), strict=True):
        ratios = [np.divide(own.own, own.bare) for own in reversed(blocks.values())]
        low, middle, high = np.percentile(ratios, [25, 50, 75], axis=1)
        axes.barh(list(reversed(blocks)), middle, xerr=(middle - low, high - middle), height=0.6)
        axes.axvline(1.0, color="black", lw=1)
        axes.set(title=title, xscale="log", xlim=(0.95, None))
        axes.set_xticks([1, 1.1, 1.5, 2, 4, 8], ["1", "1.1", "1.5", "2", "4", "8"])
    panels[-1].set_xlabel("step time over that of the bare Trainer: median, quartiles")
    figure.savefig(path, dpi=100)


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=12, help="blocks of each variant")
    parser.add_argument("--steps", type=int, default=100, help="steps of a block; 50 at least")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu on a shared machine")
    parser.add_argument("--models", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--picture", type=Path, default=Path("runs/overhead.png"))
    return parser.parse_args()


def main() -> None:
    """Measure, print the tables, draw the picture."""
    args = parsed()
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    picture, names = args.picture.resolve(), [name for name in args.variants if name != BARE]
    columns = BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn()
    results = {}
    with tempfile.TemporaryDirectory() as folder, Progress(*columns) as bar:
        os.chdir(folder)
        task = bar.add_task("", total=len(args.models) * args.rounds * len(names))
        for setting in map(SETTINGS.__getitem__, args.models):
            bar.update(task, description=setting.title)
            blocks, step_ms = measure(setting, names, args, partial(bar.advance, task))
            results[setting.title] = blocks
            bar.print(report(setting.title, blocks, step_ms, args.steps), highlight=False)
        os.chdir(picture.parent)
    draw(results, picture)
    print(f"picture: {picture}")


if __name__ == "__main__":
    main()
