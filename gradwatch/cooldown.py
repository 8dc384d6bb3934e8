"""Say the same thing about the same layer once, then not again for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        return not self.rests(finding.rule, finding.layer, finding.step)

    def rests(self, rule: str, layer: str, step: int) -> bool:
        """Tell whether a rule has spoken about a layer lately.

        Args:
            rule: Its name.
            layer: The layer.
            step: Optimizer step.
        """
        last = self._said.get((rule, layer))
        return last is not None and 0 <= step - last < self._steps

    def cover(self, finding: Finding, layers: Iterable[str]) -> None:
        """Count a finding as said about further layers: those that share its cause.

        Args:
            finding: What was told.
            layers: Their names.
        """
        self._said.update({(finding.rule, layer): finding.step for layer in layers})

    def state_dict(self) -> list[list[Any]]:
        """Give what was said, as primitives."""
        return [[rule, layer, step] for (rule, layer), step in self._said.items()]

    def load_state_dict(self, state: list[list[Any]]) -> None:
        """Go on from a saved state."""
        self._said = {(str(rule), str(layer)): int(step) for rule, layer, step in state}
