"""Which sinks a Trainer's loggers, console and log folder ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gradwatch.sinks.console import ConsoleSink
from gradwatch.sinks.loggers import LoggerSink
from gradwatch.sinks.record import RunRecordSink
from gradwatch.sinks.wandb import WandbSink, wandb_run

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from gradwatch.sinks.protocol import Sink


def sinks_of(trainer: pl.Trainer, *, console: bool, record: bool) -> list[Sink]:
    """Make the sinks of a run; none on ranks other than 0.

    Args:
        trainer: The Trainer.
        console: Tell findings on the console.
        record: Write the run record beside the logs.
    """
    if not trainer.is_global_zero:
        return []
    sinks: list[Sink] = [LoggerSink(trainer.loggers)]
    run = wandb_run(trainer.loggers)
    if run is not None:
        sinks.append(WandbSink(run))
    if console:
        sinks.append(ConsoleSink(write=trainer.print))
    if record and not getattr(trainer, "fast_dev_run", False):
        root = trainer.log_dir or trainer.default_root_dir
        sinks.append(RunRecordSink(Path(root) / "gradwatch" / "record.jsonl"))
    return sinks
