"""Words that several tell with."""

from __future__ import annotations

__all__ = ["counted", "one_line"]


def counted(number: int, noun: str) -> str:
    """Give a number of things in words.

    Args:
        number: How many.
        noun: One of them.

    >>> counted(1, "layer"), counted(1200, "layer")
    ('1 layer', '1,200 layers')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def one_line(error: BaseException) -> str:
    r"""Give the kind of an error and the first line of what it says.

    Args:
        error: Any error.

    >>> one_line(ValueError("no such tile\nat line 3"))
    'ValueError: no such tile'
    """
    return f"{type(error).__name__}: {error}".partition("\n")[0]
