"""Run by test_killed.py in a process of its own, whose W&B service is killed while it trains.

Prints one line of JSON: where the weights differ from a run without gradwatch and logger, and
how many steps and findings another sink was told.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import WandbLogger

from gradwatch import MemorySink, NonFiniteOptions
from gradwatch.callbacks import GradWatch
from tests.kit import Net, SkipsByHand, build, differences, fingerprint, fit, make_loader


class KillsService(pl.Callback):
    """Kill wandb-core after the fourth step, as an out-of-memory killer does."""

    killed = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == 4:
            for pid in find_services():
                os.kill(pid, signal.SIGKILL)
                self.killed += 1


def find_services() -> list[int]:
    """Give this process's children that run wandb-core."""
    parents = {stat: stat.read_text().rpartition(")")[2].split()[1] for stat in list_stats()}
    own = [stat.parent for stat, parent in parents.items() if parent == str(os.getpid())]
    return [int(each.name) for each in own if b"wandb-core" in (each / "cmdline").read_bytes()]


def list_stats() -> list[Path]:
    return [stat for stat in Path("/proc").glob("[0-9]*/stat") if stat.exists()]


def train(*callbacks: pl.Callback, logger: Any) -> dict[str, Any]:
    module = build(Net)
    loader = make_loader(spoil=[6, 20])
    trainer = fit(module, callbacks, loader, logger=logger, log_every_n_steps=1)
    return fingerprint(trainer, module)


if __name__ == "__main__":
    bare = train(SkipsByHand(), logger=False)
    memory, kills = MemorySink(), KillsService()
    watch = GradWatch(
        non_finite=NonFiniteOptions(policy="skip"), record=False, console=False, sinks=[memory]
    )
    watched = train(watch, kills, logger=WandbLogger(project="grads", mode="offline"))
    told = {"killed": kills.killed, "differences": differences(bare, watched)}
    told |= {"records": len(memory.records), "findings": [f.step for f in memory.findings]}
    print(json.dumps(told), flush=True)  # noqa: T201
