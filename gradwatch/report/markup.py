"""HTML in which escaping cannot be forgotten: plain text is text, only `Html` is markup.

A template engine would be one more dependency for what a function of twenty lines does; and in a
template every place has to remember to escape.
"""

import html

from gradwatch.printable import printable

VOID = frozenset({"br", "img", "meta"})


class Html(str):
    """Markup that goes into a page as it stands."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | bool) -> Html:
    """Give an element; plain text inside it and in its attributes is escaped.

    Args:
        name: Name of the element.
        children: What is inside: `Html` as it stands, any other text escaped.
        attributes: Attributes; ``_`` stands for ``-`` and a trailing one is dropped
            (``class_``). True gives the bare name, False leaves the attribute out.

    Examples:
        >>> tag("p", "a < b", tag("b", "&"), class_="note")
        '<p class="note">a &lt; b<b>&amp;</b></p>'
    """
    opening = f"<{name}{''.join(_attribute(*item) for item in attributes.items())}>"
    if name in VOID:
        return Html(opening)
    return Html(f"{opening}{join(*children)}</{name}>")


def join(*parts: str, by: str = "") -> Html:
    """Put parts one after the other; plain text is escaped.

    Args:
        parts: `Html` as it stands, any other text escaped.
        by: What goes between them.

    Examples:
        >>> join("<", Html("<br>"))
        '&lt;<br>'
    """
    return Html(_escape(by).join(_escape(part) for part in parts))


def _escape(text: str) -> str:
    if isinstance(text, Html):
        return text
    # A mark that turns the direction of writing would turn what stands beside it too.
    return html.escape("\n".join(map(printable, text.split("\n"))))


def _attribute(name: str, value: str | bool) -> str:  # noqa: FBT001 - as HTML has it
    if value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{html.escape(str(value))}"'
