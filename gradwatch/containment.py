"""A monitor never takes a run down: errors of a session stay inside it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from gradwatch.errors import GradwatchError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


class Switched(Protocol):
    """Something with events that can be switched off.

    Attributes:
        off: True once it was.
        busy: True while events must not be heard: a replay runs the model again unseen.
    """

    off: bool
    busy: bool

    def switch_off(self, error: Exception) -> None:
        """Take it off for the rest of the run and say so once."""


S = TypeVar("S", bound=Switched)


def contained(event: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T | None]:
    """Keep an event's error inside: told once, then off; gradwatch's own errors pass.

    Args:
        event: The method.

    Returns:
        The method, doing nothing once the session is off.
    """

    @functools.wraps(event)
    def safe(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        if self.off or self.busy:
            return None
        try:
            return event(self, *args, **kwargs)
        except GradwatchError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
            self.switch_off(error)
            return None

    return safe
