"""How a session measures: the options that all parts share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gradwatch.errors import one_of, positive

BackwardHooks = Literal["sampled", "every_step", "module"]


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How a session measures.

    Attributes:
        backward_hooks: ``"sampled"`` taps on logging steps, ``"every_step"``, or
            ``"module"``: torch's own full backward hooks at every step.
        byte_budget: Most bytes of batches held for a replay.

    Raises:
        ConfigurationError: If the choice is unknown or the budget is not positive.
    """

    backward_hooks: BackwardHooks = "sampled"
    byte_budget: int = 1 << 30

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        one_of("backward_hooks", self.backward_hooks, get_args(BackwardHooks))
        positive("byte_budget", self.byte_budget)
