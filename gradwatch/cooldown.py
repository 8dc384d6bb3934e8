"""Say the same thing about the same layer once, then not again for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwatch.findings import Finding


class Cooldown:
    """Let a finding through once per rule and layer and then once per so many steps.

    A step before the last one that was told belongs to another run: there nothing was said yet.

    Args:
        steps: Optimizer steps of silence.

    Examples:
        >>> from gradwatch.findings import Finding
        >>> dead = Finding(rule="dead", layer="a", severity="warning", step=1, summary="")
        >>> cooldown = Cooldown(10)
        >>> cooldown.allows(dead), cooldown.allows(dead)
        (True, False)
    """

    def __init__(self, steps: int) -> None:
        """Start with nothing said."""
        self._steps = steps
        self._said: dict[tuple[str, str], int] = {}

    def allows(self, finding: Finding) -> bool:
        """Tell whether a finding is due, and count it as said if so."""
        due = self.is_due(finding)
        if due:
            self._said[finding.rule, finding.layer] = finding.step
        return due

    def is_due(self, finding: Finding) -> bool:
        """Tell whether a finding would be let through; nothing is counted."""
        last = self._said.get((finding.rule, finding.layer))
        return last is None or not 0 <= finding.step - last < self._steps

    def state_dict(self) -> list[list[Any]]:
        """Give what was said, as primitives."""
        return [[rule, layer, step] for (rule, layer), step in self._said.items()]

    def load_state_dict(self, state: list[list[Any]]) -> None:
        """Go on from a saved state."""
        self._said = {(str(rule), str(layer)): int(step) for rule, layer, step in state}
