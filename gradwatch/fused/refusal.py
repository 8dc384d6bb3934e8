"""A place where a fused function could stand, and why it does not."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Refusal"]


class Refusal(NamedTuple):
    """A place where something could stand, and why it does not.

    Attributes:
        layer: Name of the module.
        kind: What stands there.
        provider: Who would have offered something; empty where none was asked.
        reason: Why not.
    """

    layer: str
    kind: str
    provider: str
    reason: str
