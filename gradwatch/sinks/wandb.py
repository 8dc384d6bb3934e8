"""What only W&B takes: alerts, pictures, the table of findings, the summary.

Scalars of a Trainer go through its logger (`LoggerSink`); a plain loop has none, so there
this sink writes them too (``scalars=True``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from gradwatch.findings import Finding
from gradwatch.readings import Coverage, StepRecord
from gradwatch.sinks.alerts import LEVELS, AlertGate, alert_text, alert_title
from gradwatch.sinks.fuse import Fuse, tell
from gradwatch.sinks.keys import FAMILIES, LIMIT
from gradwatch.sinks.loggers import LayerKeys
from gradwatch.sinks.pictures import Pictures, PictureSink
from gradwatch.sinks.rows import X_AXIS, Rows, Run
from gradwatch.sinks.story import Story
from gradwatch.sinks.wandb_tables import findings_table, table_key, told_table
from gradwatch.tables import Table

PREFIXES = ("grad", *FAMILIES, "grad_norm_depth", "lr", "mem", "flow")
ALERT_WAIT_SECONDS = 60


class HasRun(Protocol):
    """What is asked of a W&B logger.

    Attributes:
        experiment: Its run.
    """

    experiment: Run


def wandb_logger(loggers: Iterable[object]) -> "HasRun | None":
    """Give the first W&B logger, whichever Lightning it comes from; None where there is none.

    Args:
        loggers: The Trainer's loggers.
    """
    for logger in loggers:
        # Two Lightning namespaces have a class each, so the name is all they share.
        if any(base.__name__ == "WandbLogger" for base in type(logger).__mro__):
            return cast("HasRun", logger)
    return None


def wandb_run(loggers: Iterable[object], *, rank: int = 0) -> Run | None:
    """Give the run behind the first W&B logger.

    Args:
        loggers: The Trainer's loggers.
        rank: This process; elsewhere than on rank 0 a logger's ``experiment`` is a dummy
            and is not touched.

    Returns:
        The run, or None where there is no W&B logger.
    """
    logger = wandb_logger(loggers) if rank == 0 else None
    return None if logger is None else logger.experiment


class WandbSink:
    """Send findings as alerts, and the gradient flow as pictures, to a W&B run.

    A failure is told once and switches this sink off; training goes on.
    """

    def __init__(
        self,
        run: Run,
        *,
        scalars: bool = False,
        limit: int | None = LIMIT,
        cooldown_steps: int = 1000,
        pictures: bool = True,
        fuse: Fuse | None = None,
        tell: Callable[[str], object] = tell,
    ) -> None:
        """Take a run, as ``wandb.init`` or a W&B logger's ``experiment`` gives it.

        Args:
            run: The run to write to.
            scalars: Write totals and layers too; for a loop without a Lightning logger.
                Rows carry no explicit W&B step, so that none is refused; their x axis is
                ``trainer/global_step``.
            limit: Most layers of which each has its series; None writes every layer.
            cooldown_steps: Optimizer steps between two alerts of one rule in one layer.
            pictures: Draw them here; False where a `PictureSink` hands them to `hang`.
            fuse: What protects the logger the run came from, so that both fail as one.
            tell: Is handed the one line about a failure.
        """
        self._gate = AlertGate(cooldown_steps)
        self._run = run
        self._rows = Rows(run, shared=scalars)
        self._fuse = fuse or Fuse("gradwatch: W&B", tell)
        self._keys = LayerKeys(limit) if scalars else None
        self._pictures = PictureSink([(self.hang, self._fuse)], tell=tell) if pictures else None
        self._log_step = 0
        self._story = Story()
        self._closed = False

    def start(self, coverage: Sequence[Coverage]) -> None:  # noqa: ARG002 - the protocol's
        """Set the x axis of the keys, where no logger of Lightning's has done so."""
        if self._keys is not None:
            self._fuse.run(self._define_axis)

    def record(self, record: StepRecord) -> None:
        """Write scalars where asked to, and pictures when it is time."""
        self._log_step = record.log_step
        self._story.record(record)
        self._fuse.run(lambda: self._write(record))
        if self._pictures is not None:
            self._pictures.record(record)

    def finding(self, finding: Finding) -> None:
        """Send an alert unless one of its kind was sent lately; keep it for the table."""
        self._story.add(finding)
        if self._pictures is not None:
            self._pictures.finding(finding)
        if self._gate.passes(finding):
            self._fuse.run(lambda: self._alert(finding))

    def table(self, table: Table) -> None:
        """Write a table under its key, such as ``roofline/table``."""
        self._fuse.run(lambda: self._write_table(table))
        if self._pictures is not None:
            self._pictures.table(table)

    def close(self) -> None:
        """Write last pictures, table and summary; the run itself stays open."""
        if self._closed:
            return
        self._closed = True
        if self._pictures is not None:
            self._pictures.close()
        self._fuse.run(self._write_end)

    def hang(self, pictures: Pictures, log_step: int) -> None:
        """Write pictures.

        Args:
            pictures: By their keys, such as ``flow/heatmap``.
            log_step: Value of ``trainer/global_step``.
        """
        import wandb

        row = {key: wandb.Image(picture) for key, picture in pictures.items()}
        self._rows.write(row, log_step)

    def state_dict(self) -> dict[str, Any]:
        """Give cooldowns and story, so that a resumed run repeats no alert and forgets nothing."""
        return {"alerts": self._gate.state_dict(), "story": self._story.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Args:
            state: State of the sink in the earlier run.
        """
        self._gate.load_state_dict(state["alerts"])
        self._story.load_state_dict(state["story"])

    def _define_axis(self) -> None:
        for prefix in PREFIXES:
            self._run.define_metric(f"{prefix}/*", step_metric=X_AXIS)

    def _write(self, record: StepRecord) -> None:
        if self._keys is not None:
            self._rows.write(self._keys.scalars(record), record.log_step)

    def _alert(self, finding: Finding) -> None:
        self._run.alert(
            title=alert_title(finding),
            text=alert_text(finding),
            level=LEVELS[finding.severity],
            wait_duration=ALERT_WAIT_SECONDS,
        )

    def _write_table(self, table: Table) -> None:
        self._rows.write({table_key(table.name): told_table(table)}, self._log_step)

    def _write_end(self) -> None:
        if self._story.findings:
            row = {"flow/findings": findings_table(self._story.findings)}
            self._rows.write(row, self._log_step)
        self._run.summary.update(self._story.summary())
