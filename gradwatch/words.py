"""Words that several tell with."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """Give a number of things in words.

    Args:
        number: How many.
        noun: One of them.

    >>> counted(1, "layer"), counted(1200, "layer")
    ('1 layer', '1,200 layers')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
