"""The errors gradwatch raises: each says what was wrong and the way out."""

from __future__ import annotations

import difflib
from numbers import Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradwatch.findings import Finding


class GradwatchError(Exception):
    """Base class of everything gradwatch raises on purpose."""


class ConfigurationError(GradwatchError, ValueError):
    """An option that cannot be meant, refused where the user wrote it."""


class NonFiniteGradientError(GradwatchError, RuntimeError):
    """Training was stopped before the weights took in a non-finite gradient.

    Attributes:
        finding: The finding that names layer, operation and cause.
    """

    def __init__(self, message: str, finding: Finding) -> None:
        """Keep the finding beside the message a person reads."""
        super().__init__(message)
        self.finding = finding

    def __reduce__(self) -> tuple[type[NonFiniteGradientError], tuple[str, Finding]]:
        """Survive the trip between processes, finding included."""
        return type(self), (str(self), self.finding)


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known names a mistyped one may stand for.

    Args:
        name: What the user wrote.
        known: The names that would have been accepted.

    Returns:
        A clause for the end of an error message.

    Examples:
        >>> nearest("encodr.0", ["encoder.0", "head"])
        "nearest: 'encoder.0'"
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:5]
    return "nearest: " + ", ".join(repr(found) for found in close)


def one_of(option: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is not among the choices, with the nearest one.

    Args:
        option: The option's name as the user writes it.
        value: What was given.
        choices: What is accepted.

    Raises:
        ConfigurationError: If ``value`` is not one of ``choices``.
    """
    known = list(choices)
    if value not in known:
        options = ", ".join(repr(choice) for choice in known)
        message = f"{option} must be one of {options}; got {value!r} ({nearest(str(value), known)})"
        raise ConfigurationError(message)


def positive(option: str, value: float) -> None:
    """Refuse zero, negative and non-finite numbers.

    Args:
        option: The option's name as the user writes it.
        value: What was given.

    Raises:
        ConfigurationError: If ``value`` is not a positive finite number.
    """
    if not isinstance(value, Real) or not 0 < value < float("inf"):
        message = f"{option} must be a positive, finite number; got {value!r}"
        raise ConfigurationError(message)


def whole(option: str, value: int, least: int) -> None:
    """Refuse what is no whole number, or too small a one.

    Args:
        option: The option's name as the user writes it.
        value: What was given.
        least: The smallest that can be meant.

    Raises:
        ConfigurationError: If ``value`` is not a whole number of ``least`` or more.
    """
    if not isinstance(value, int) or value < least:
        message = f"{option} must be a whole number of {least} or more; got {value!r}"
        raise ConfigurationError(message)
