"""Attach → undo: whatever is hooked, patched or swapped comes back off."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Undo:
    """Collect ways back and walk them once, last in first out.

    Safe to call twice and after an exception; a step that raises does not keep
    the others from running.

    Examples:
        >>> undo = Undo()
        >>> undo.add(lambda: print("hook removed"))
        >>> undo()
        hook removed
        >>> undo()
    """

    def __init__(self) -> None:
        """Start with nothing to undo."""
        self._stack = ExitStack()

    def add(self, back: Callable[[], object]) -> None:
        """Remember one way back.

        Args:
            back: Called without arguments when the undo is called.
        """
        self._stack.callback(back)

    def __call__(self) -> None:
        """Undo everything that was added since the last call."""
        self._stack.close()


def patch_instance(target: object, name: str, value: Any) -> Undo:  # noqa: ANN401 - any attribute
    """Set an instance attribute and hand back the undo that restores what was there.

    Args:
        target: Object to patch.
        name: Attribute name.
        value: New value.

    Returns:
        An undo; it deletes the attribute where the instance had none of its own.
    """
    own = vars(target)
    missing = object()
    before = own.get(name, missing)

    def back() -> None:
        if before is missing:
            own.pop(name, None)
        else:
            own[name] = before

    own[name] = value
    undo = Undo()
    undo.add(back)
    return undo
