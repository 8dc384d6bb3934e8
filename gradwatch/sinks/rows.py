"""Rows of a W&B run, written so that none is dropped."""

from typing import Any, Protocol

X_AXIS = "trainer/global_step"


class Run(Protocol):
    """What is asked of a ``wandb.Run``."""

    @property
    def summary(self) -> Any:  # noqa: ANN401 - a mapping of W&B's own
        """What the table of runs shows."""

    @property
    def step(self) -> int:
        """Number of the row that is being filled."""

    def log(self, data: dict[str, Any], *, commit: bool) -> None:
        """Add to the row that is being filled; with ``commit`` close it."""

    def alert(self, title: str, text: str, level: str, wait_duration: int) -> None:
        """Send an alert."""

    def define_metric(self, name: str, step_metric: str) -> object:
        """Set the x axis of a metric."""


class Rows:
    """Write rows to a run that a user may write to as well, such that none of either is dropped.

    W&B drops a row whose explicit ``step=`` lies behind the run's counter, and each closed row
    moves the counter on. So beside a user who may count for himself a row is left open, to ride
    with the user's next one; it is closed only where the user wrote nothing until the next.
    """

    def __init__(self, run: Run, *, shared: bool) -> None:
        """Take the run.

        Args:
            run: The run to write to.
            shared: True where the user's own loop logs to the run, perhaps with ``step=``.
        """
        self._run = run
        self._shared = shared
        self._open_row = -1
        self._held: set[str] = set()

    def write(self, row: dict[str, Any], log_step: int) -> None:
        """Write a row at a step of the logger's x axis.

        Args:
            row: What to write; an empty one is left out.
            log_step: Value of ``trainer/global_step``.
        """
        if not row:
            return
        if self._shared:
            self._make_room(set(row))
        self._run.log({**row, X_AXIS: log_step}, commit=not self._shared)

    def _make_room(self, keys: set[str]) -> None:
        # A finished run answers this with an error, and the question after it in 30 seconds.
        self._run.log({}, commit=False)
        number = self._run.step
        held = self._held if number == self._open_row else set()
        if held & keys:
            self._run.log({}, commit=True)
            number, held = number + 1, set()
        self._open_row, self._held = number, held | keys
