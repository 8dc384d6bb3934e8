"""What a study saw, before anything is judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from gradwatch.roofline.costs import LayerCost, Pair, Phase
    from gradwatch.roofline.phases import Crossing
    from gradwatch.roofline.timeline import Timeline


@dataclass(kw_only=True)
class Evidence:
    """What a study saw.

    Attributes:
        device: Where the model lies.
        timed: Edges of each timed step, the first of the next step included.
        costs: Layer → what its own work costs in one step.
        counts: (phase, operation) → launches in one step.
        pairs: How often an operation's output was read by the very next one.
        timelines: The traced steps, given to their layers.
        blocked: Modules that could bear no hook → why.
        notes: What was not seen, and why.
        extra_seconds: Time the study took beyond the steps themselves.
    """

    device: torch.device
    timed: list[list[Crossing]] = field(default_factory=list)
    costs: dict[str, LayerCost] = field(default_factory=dict)
    counts: Counter[tuple[Phase, str]] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)
    timelines: list[Timeline] = field(default_factory=list)
    blocked: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    extra_seconds: float = 0.0
