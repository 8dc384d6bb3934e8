"""Write beside a progress bar, not into it.

Rich redirects what is printed while its bar is live. tqdm does not: its bars are wiped before
a line is written, and drawn again below it.
"""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def beside_bars() -> Iterator[None]:
    """Wipe all of tqdm's bars, and draw them again at the end; without tqdm do nothing."""
    # Where nobody has imported it there is no bar.
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    with contextlib.ExitStack() as stack:
        if tqdm is not None:
            stack.enter_context(tqdm.external_write_mode())
        yield


def say(text: str) -> None:
    """Print a block of lines beside the progress bars.

    Args:
        text: The lines, without the last newline.

    Examples:
        >>> say("gradwatch watches 1 of 1 layer")
        gradwatch watches 1 of 1 layer
    """
    with beside_bars():
        print(text)  # noqa: T201 - this is where the console is written to
