"""A run record of its own for each run that is alive: two in one folder mix no lines."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Literal, NamedTuple

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

TAIL_BYTES = 4096
LAST_LINE = b'{"kind":"footer"'
TAKEN = frozenset({errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK})


class Claim(NamedTuple):
    """A file that no other live run writes to.

    Attributes:
        path: Where it is.
        file: It, open to append to, unbuffered.
    """

    path: Path
    file: FileIO

    def release(self) -> None:
        """Close the file and let others have it."""
        with suppress(OSError):
            if fcntl is not None:
                # Workers that were forked meanwhile hold the file too: closing it is not enough.
                fcntl.flock(self.file, fcntl.LOCK_UN)
        with suppress(OSError):
            self.file.close()


def claim(path: Path) -> Claim:
    """Open a run record to append to, or one beside it where another live run has it.

    The operating system holds the claim and lets go of it with the process, however that ends.
    Where it cannot (Windows, some network drives), a record whose run has not come to its end
    counts as taken.

    Args:
        path: The record that is wanted; its folder is made.

    Returns:
        That file, or ``record-2.jsonl``, ``record-3.jsonl``, ... beside it.

    Raises:
        OSError: If it can be neither made nor opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return next(
        made for own in itertools.chain([path], beside) if (made := _claimed(own)) is not None
    )


def _claimed(path: Path) -> Claim | None:
    # Unbuffered: a crash loses no line, and a full disk shows at the line it cuts off.
    file = path.open("ab", buffering=0)
    known = _lock(file)
    if known == "mine" or (known == "unknown" and _is_over(path)):
        return Claim(path, file)
    file.close()
    return None


def _lock(file: FileIO) -> Literal["mine", "taken", "unknown"]:
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return "mine"
    if fcntl is None:
        return "unknown"
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return "taken" if error.errno in TAKEN else "unknown"
    return "mine"


def _is_over(path: Path) -> bool:
    """Tell whether a record is empty or its last run came to its end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - TAIL_BYTES, 0))
        return size == 0 or file.read().splitlines()[-1].startswith(LAST_LINE)
