"""What keeps a broken sink from taking the run down: told once, then switched off."""

import logging
from collections.abc import Callable

from gradwatch.sinks.bars import beside_bars

log = logging.getLogger("gradwatch")


def tell(line: str) -> None:
    """Tell what is wrong with a sink through the project's logger, beside the progress bars.

    Args:
        line: What is told.
    """
    with beside_bars():
        log.warning(line)


class Fuse:
    """Run actions until one raises; say so once, and run none after it.

    Attributes:
        blown: True once an action has raised.

    Examples:
        >>> told = []
        >>> fuse = Fuse("the logger", told.append)
        >>> fuse.run(lambda: 1 / 0)
        >>> fuse.run(lambda: 1 / 0)
        >>> told
        ['the logger is switched off, training goes on: ZeroDivisionError: division by zero']
    """

    def __init__(self, name: str, tell: Callable[[str], object] = tell) -> None:
        """Name what is protected, and who hears of it."""
        self.blown = False
        self._name = name
        self._tell = tell

    def run(self, action: Callable[[], object]) -> None:
        """Run the action unless an earlier one raised.

        Args:
            action: What may fail; its result is dropped.
        """
        if self.blown:
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever a logger or a disk raises
            self.blown = True
            # The action that broke, not the run it broke in, is what the reader must hear of.
            reason = f"{type(error).__name__}: {error}"
            self._tell(f"{self._name} is switched off, training goes on: {reason}")
