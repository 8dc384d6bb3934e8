"""Run by test_online.py in a process of its own: an online run, then an offline one.

Both hold a planted NaN, whose step is skipped. Then the page is asked for as from the command
line, and at last one line of JSON tells where the runs lie.
"""

import json
import sys
from pathlib import Path
from typing import Any, Literal

import wandb
from lightning.pytorch.loggers import WandbLogger

from gradwatch import NonFiniteOptions
from gradwatch.callbacks import GradWatch
from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.cli import run_workspace
from gradwatch.parts import Part, Stage
from gradwatch.tables import Table
from tests.kit import Net, build, fit, make_loader

TRIALS = Table(
    name="trials",
    title="what was tried",
    step=0,
    columns=("layer", "speedup (×)", "verdict"),
    rows=(("norm", 1.25, "kept"), ("bn", None, "not tried")),
)


class ShowsTrials(Part):
    """A part that shows a table between two steps."""

    name = "shows_trials"

    def open(self, stage: Stage) -> None:
        self._stage = stage

    def judge(self, reading: Any) -> list[Any]:
        if reading.step == 5:
            self._stage.show(TRIALS)
        return []


def train(mode: Literal["online", "offline"], folder: Path) -> dict[str, str]:
    folder.mkdir()
    watch = GradWatch(non_finite=NonFiniteOptions(policy="skip"), workspace=True)
    callbacks = [watch, MonitorCallback((ShowsTrials(),), Configuration())]
    logger = WandbLogger(project="grads", mode=mode, save_dir=folder)
    options: dict[str, Any] = {"default_root_dir": folder, "log_every_n_steps": 1}
    fit(build(Net), callbacks, make_loader(spoil=[6]), logger=logger, **options)
    run = logger.experiment
    told = {"id": run.id, "folder": str(Path(run.dir).parent)}
    wandb.finish()
    return told


if __name__ == "__main__":
    place = Path(sys.argv[1])
    runs = [train(mode, place / mode) for mode in ("online", "offline")]
    codes = [run_workspace("acme/grads", None, renew=renew) for renew in (False, True)]
    print(json.dumps({"runs": runs, "codes": codes}))  # noqa: T201
