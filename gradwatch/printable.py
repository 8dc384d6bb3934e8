"""Text that takes one line and does nothing else, whatever is in it."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Write out what is no visible sign: line ends, terminal codes, marks that turn a line round.

    A module may be called anything, and a path need not be UTF-8; neither is to break a line, to
    command a terminal or to fail a logger.

    Args:
        text: Any text.

    Examples:
        >>> printable("net.数学"), printable("a\nb"), printable("\x1b[2J"), printable("\ud800")
        ('net.数学', 'a\\nb', '\\x1b[2J', '\\ud800')
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else _written_out(sign) for sign in text)


def _written_out(sign: str) -> str:
    return sign.encode("unicode_escape", "backslashreplace").decode()
