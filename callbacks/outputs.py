"""How a callback measures and tells, and which sinks a Trainer's loggers ask for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gradwatch.host import RUNS
from gradwatch.session_options import SessionOptions
from gradwatch.sinks.console import ConsoleSink
from gradwatch.sinks.loggers import LoggerSink, MetricsLogger
from gradwatch.sinks.pictures import PictureSink
from gradwatch.sinks.protocol import Sink
from gradwatch.sinks.record import RunRecordSink
from gradwatch.sinks.walls import image_walls
from gradwatch.sinks.wandb import WandbSink, wandb_logger
from gradwatch.sinks.workspace import require_workspaces
from gradwatch.sinks.workspace_sink import WorkspaceSink

if TYPE_CHECKING:
    import lightning.pytorch as pl

log = logging.getLogger("gradwatch")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """How a callback measures and tells.

    Attributes:
        sinks: Sinks of the user's own, beside loggers, console and run record.
        console: Tell findings on the console.
        record: Write the run record beside the logs.
        options: How the session measures.
        checkpoint: Keep intact weights when a non-finite gradient stops training.
        workspace: Save a ready-made page in the W&B logger's project.

    Raises:
        ConfigurationError: If the workspace is wanted and wandb-workspaces is not installed.
    """

    sinks: tuple[Sink, ...] = ()
    console: bool = True
    record: bool = True
    options: SessionOptions = field(default_factory=SessionOptions)
    checkpoint: bool = True
    workspace: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be done on this machine."""
        if self.workspace:
            require_workspaces()


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
    loggers = cast("list[MetricsLogger]", trainer.loggers)
    sinks = _logger_sinks(loggers, workspace=configuration.workspace)
    if configuration.console:
        sinks.append(ConsoleSink())
    if configuration.record and not getattr(trainer, "fast_dev_run", False):
        sinks.append(RunRecordSink(Path(root) / RUNS / "record.jsonl", config=config))
    return [*sinks, *configuration.sinks]


def _logger_sinks(loggers: Sequence[MetricsLogger], *, workspace: bool) -> list[Sink]:
    """Make the sinks of the loggers: numbers for all, and more for those that take more."""
    plain = LoggerSink(loggers)
    sinks: list[Sink] = [plain]
    walls = [(wall, plain.fuse(logger)) for logger, wall in image_walls(loggers)]
    logger = wandb_logger(loggers)
    if logger is not None:
        run: Any = logger.experiment
        rich = WandbSink(run, pictures=False, fuse=plain.fuse(logger))
        # A disabled run swallows everything: drawing for it would be time for nothing.
        walls += [] if run.disabled else [(rich.hang, plain.fuse(logger))]
        sinks += [rich, WorkspaceSink(run)] if workspace else [rich]
    elif workspace:
        log.warning("gradwatch: workspace=True does nothing without a W&B logger")
    # Before the others at the end: their last rows come after the last pictures.
    return [PictureSink(walls), *sinks] if walls else sinks
