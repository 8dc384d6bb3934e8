"""Pictures of the run, drawn once for all loggers that can show them."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from gradwatch.findings import Finding
from gradwatch.history import History
from gradwatch.readings import Coverage, StepRecord
from gradwatch.sinks.clock import PictureClock
from gradwatch.sinks.fuse import Fuse, tell
from gradwatch.tables import Table

if TYPE_CHECKING:
    from PIL.Image import Image

# Numbers are logged under the name of this picture: no logger takes both under one key.
KEYS = {"grad/loss_scale": "flow/loss_scale"}

Pictures: TypeAlias = "Mapping[str, Image]"
Wall: TypeAlias = Callable[[Pictures, int], object]


class PictureSink:
    """Keep the history of a run, and hang pictures of it where loggers show images.

    Drawing takes a fraction of a second in the training process; `PictureClock` keeps it rare.
    A failure is told once and switches off the drawing, or the one wall it happened at.
    """

    def __init__(
        self, walls: Sequence[tuple[Wall, Fuse]], *, tell: Callable[[str], object] = tell
    ) -> None:
        """Take the places pictures go to.

        Args:
            walls: What is handed pictures by their key and the step of the logger's x axis,
                and what protects the logger behind it.
            tell: Is handed the one line about a drawing that failed.
        """
        self._walls = list(walls)
        self._drawing = Fuse("gradwatch: drawing", tell)
        self._clock = PictureClock()
        self._history = History()
        self._tables: dict[str, Table] = {}
        self._log_step = 0
        self._shown = True

    def start(self, coverage: Sequence[Coverage]) -> None:
        """Leave the coverage report to the console and the run record."""

    def record(self, record: StepRecord) -> None:
        """Keep the profile; draw when it is time."""
        self._log_step = record.log_step
        self._drawing.run(lambda: self._keep(record))
        if self._clock.tick(record.step):
            self._hang()

    def finding(self, finding: Finding) -> None:
        """Want a picture of what is wrong."""
        if finding.severity != "info":
            self._clock.ask()

    def table(self, table: Table) -> None:
        """Keep a table that a picture may be made of."""
        self._tables[table.name] = table
        self._shown = False

    def close(self) -> None:
        """Hang the last pictures, unless they hang already."""
        self._hang()

    def _keep(self, record: StepRecord) -> None:
        self._shown = False
        self._history.add(record)

    def _hang(self) -> None:
        if self._shown:
            return
        self._shown = True
        began = time.monotonic()
        drawn: dict[str, Image] = {}
        self._drawing.run(lambda: drawn.update(self._draw()))
        for wall, fuse in self._walls if drawn else ():
            fuse.run(lambda wall=wall: wall(drawn, self._log_step))  # type: ignore[misc]
        self._clock.spend(time.monotonic() - began)

    def _draw(self) -> "dict[str, Image]":
        from gradwatch.pictures import gallery

        drawn = gallery(self._history, tables=self._tables)
        return {KEYS.get(picture.name, picture.name): picture.image for picture in drawn}
