"""How a callback measures and tells, and which sinks a Trainer's loggers ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gradwatch.host import RUNS
from gradwatch.session import SessionOptions
from gradwatch.sinks.console import ConsoleSink
from gradwatch.sinks.loggers import LoggerSink, MetricsLogger
from gradwatch.sinks.protocol import Sink
from gradwatch.sinks.record import RunRecordSink
from gradwatch.sinks.wandb import WandbSink, wandb_run

if TYPE_CHECKING:
    import lightning.pytorch as pl


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """How a callback measures and tells.

    Attributes:
        sinks: Sinks of the user's own, beside loggers, console and run record.
        console: Tell findings on the console.
        record: Write the run record beside the logs.
        options: How the session measures.
        checkpoint: Keep intact weights when a non-finite gradient stops training.
    """

    sinks: tuple[Sink, ...] = ()
    console: bool = True
    record: bool = True
    options: SessionOptions = field(default_factory=SessionOptions)
    checkpoint: bool = True


def sinks_of(
    trainer: pl.Trainer, configuration: Configuration, config: Mapping[str, Any]
) -> list[Sink]:
    """Make the sinks of a run; none on ranks other than 0.

    Args:
        trainer: The Trainer.
        configuration: What is wanted beside the loggers.
        config: Options of the parts, for the header of the run record.
    """
    # Lightning sends the folder from rank 0 to all: whoever does not ask lets the others wait.
    root = trainer.log_dir or trainer.default_root_dir
    if not trainer.is_global_zero:
        return []
    sinks: list[Sink] = [LoggerSink(cast("list[MetricsLogger]", trainer.loggers))]
    run = wandb_run(trainer.loggers)
    if run is not None:
        sinks.append(WandbSink(run))
    if configuration.console:
        sinks.append(ConsoleSink(write=trainer.print))
    if configuration.record and not getattr(trainer, "fast_dev_run", False):
        sinks.append(RunRecordSink(Path(root) / RUNS / "record.jsonl", config=config))
    return [*sinks, *configuration.sinks]
