"""Save the ready-made W&B page once a run, beside the training and never in its way."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from gradwatch.findings import Finding
from gradwatch.readings import Coverage, StepRecord
from gradwatch.sinks.fuse import tell
from gradwatch.sinks.workspace import save_workspace

PATIENCE_SECONDS = 5.0


class PlacedRun(Protocol):
    """What is asked of a ``wandb.Run``."""

    @property
    def offline(self) -> bool:
        """Whether it reaches no server."""

    @property
    def disabled(self) -> bool:
        """Whether it is a dummy."""

    @property
    def entity(self) -> str:
        """User or team."""

    @property
    def project(self) -> str:
        """Name of the project."""


class WorkspaceSink:
    """Save the page at the first step, in a thread: a slow server delays no training.

    Where it lies, or why there is none, is told in one line at the next record.
    """

    def __init__(self, run: PlacedRun, *, tell: Callable[[str], object] = tell) -> None:
        """Take a run; nothing is sent yet.

        Args:
            run: The run whose project gets the page.
            tell: Is handed the one line.
        """
        self._run = run
        self._tell = tell
        self._thread: threading.Thread | None = None
        self._line = ""

    def start(self, coverage: Sequence[Coverage]) -> None:  # noqa: ARG002 - the protocol's
        """Begin to save; of a run without a server say how to do it later."""
        if self._run.disabled:
            return
        if self._run.offline:
            project = self._run.project or "PROJECT"
            self._tell(
                "gradwatch: this run is offline, so W&B has no workspace yet; after wandb sync: "
                f"gradwatch workspace ENTITY/{project}"
            )
            return
        place = (self._run.entity, self._run.project)
        self._thread = threading.Thread(target=self._save, args=place, daemon=True)
        self._thread.start()

    def record(self, record: StepRecord) -> None:  # noqa: ARG002 - the protocol's
        """Say what came of it, as soon as it is known."""
        if self._line:
            self._tell(self._line)
            self._line = ""

    def finding(self, finding: Finding) -> None:
        """Leave findings to sinks that can show text."""

    def close(self) -> None:
        """Wait a little for a save that is still under way, and say what came of it."""
        if self._thread is None:
            return
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():
            self._line = "gradwatch: the W&B workspace is not saved yet, W&B does not answer"
        self._thread = None
        if self._line:
            self._tell(self._line)
            self._line = ""

    def _save(self, entity: str, project: str) -> None:
        try:
            self._line = f"gradwatch: W&B workspace: {save_workspace(entity, project)}"
        except Exception as error:  # noqa: BLE001 - whatever a server or its client raises
            self._line = (
                f"gradwatch: the W&B workspace could not be saved, training goes on: {error!r}; "
                f"to try again: gradwatch workspace {entity}/{project}"
            )
