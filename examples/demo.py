"""Train on real images with GradWatch, then catch a bug before it reaches the weights.

Run: make demo (or python examples/demo.py). No account, no question; all it writes is in runs/.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from digits import Digits, images, quiet
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from torch import nn

from gradwatch import NonFiniteGradientError
from gradwatch.callbacks import GradWatch
from gradwatch.report import write_report

WANDB = Path(sys.executable).with_name("wandb")


class Fingerprint(Callback):
    """Keep a hash of every bit of the weights, as they are before each update."""

    seen = ""

    def on_before_optimizer_step(self, *args: Any) -> None:
        self.seen = fingerprint(args[1])


def fingerprint(model: nn.Module) -> str:
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()[:16]


def fit(model: LightningModule, *callbacks: Callback) -> Path:
    """Train, and give the folder of the W&B run."""
    # Absolute: W&B's own process stays in the folder that it was started in.
    logger = WandbLogger(project="gradwatch-demo", save_dir=Path("runs").absolute(), mode="offline")
    trainer = Trainer(
        logger=logger, callbacks=[*callbacks, GradWatch()], max_steps=300, log_every_n_steps=5,
        accelerator="cpu", enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    folder = Path(logger.experiment.dir).parent
    try:
        trainer.fit(model, images())
    except NonFiniteGradientError as error:
        print(f"\nstopped     {str(error).splitlines()[-1].strip()}")
    logger.experiment.finish()
    return folder


def show(folder: Path) -> None:
    """Say where a run lies; read its alerts back from its file, as a sync would send them."""
    command = [str(WANDB), "leet", "inspect", "--json", str(folder)]
    # S603: what runs is this environment's own tool. What it complains of goes to the terminal.
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    for record in map(json.loads, lines.stdout.splitlines()):
        if record["type"] == "alert":
            print(f"W&B alert   {record['alert']['title']}")
    print(f"W&B run     {folder}\n  look      {WANDB} leet {folder}")
    print(f"  upload    {WANDB} sync {folder}")
    print(f"report      {write_report('runs', Path('runs', f'{folder.name}.html').absolute())}")


if __name__ == "__main__":
    quiet()
    torch.manual_seed(0)
    print("1. 300 steps on 1,797 digits; a transformer of 27 layers; nothing is wrong\n")
    show(fit(Digits()))
    print("\n2. the same, but in block 2 a column attends to its neighbours: blank ones, to none\n")
    model, before = Digits(window=2), Fingerprint()
    folder, equal = fit(model, before), before.seen == fingerprint(model)
    print(f"weights     {'equal to' if equal else 'NOT'} those before the update: {before.seen}")
    show(folder)
