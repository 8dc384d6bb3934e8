"""What one part knows of why another one's finding came to be: one fault is told once, with both.

A look at the graph knows why a gradient must fade before it is measured to do so. It offers what
it knows under the name of the rule that will see it, and keeps silent while that rule makes up its
mind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gradwatch.findings import Finding


class Reasons:
    """What the parts of a session know for one another.

    Examples:
        >>> reasons = Reasons()
        >>> reasons.patience("vanishing")
        0
        >>> reasons.expect("vanishing", steps=5)
        >>> reasons.offer("vanishing", lambda layer: None)
        >>> reasons.why("vanishing", "net.0") is None, reasons.is_told("vanishing")
        (True, False)
    """

    def __init__(self) -> None:
        """Start with nothing known."""
        self._steps: dict[str, int] = {}
        self._known: dict[str, Callable[[str], Finding | None]] = {}
        self._told: set[str] = set()
        self._excused: dict[str, set[str]] = {}

    def expect(self, rule: str, steps: int) -> None:
        """Say that a rule will speak, if at all, by so many steps.

        Args:
            rule: Its name.
            steps: Optimizer steps it needs.
        """
        self._steps[rule] = steps

    def patience(self, rule: str) -> int:
        """Give the steps a rule needs to speak; 0 where it is not watched for.

        Args:
            rule: Its name.
        """
        return self._steps.get(rule, 0)

    def offer(self, rule: str, explain: Callable[[str], Finding | None]) -> None:
        """Offer what is known of what a rule will see.

        Args:
            rule: Its name.
            explain: Gives what would be told of a layer; None where nothing is known of it.
        """
        self._known[rule] = explain

    def why(self, rule: str, layer: str) -> Finding | None:
        """Ask why a rule sees what it sees; what is answered counts as told.

        Args:
            rule: Its name.
            layer: The layer it speaks about.
        """
        explain = self._known.get(rule)
        reason = explain(layer) if explain else None
        if reason is not None:
            self._told.add(rule)
        return reason

    def is_told(self, rule: str) -> bool:
        """Tell whether what was offered to a rule has been told with it.

        Args:
            rule: Its name.
        """
        return rule in self._told

    def excuse(self, rule: str, layers: Iterable[str]) -> None:
        """Say of layers that what a rule will see of them is meant.

        Args:
            rule: Its name.
            layers: Their names.
        """
        self._excused.setdefault(rule, set()).update(layers)

    def excused(self, rule: str) -> frozenset[str]:
        """Give the layers of which a rule should keep silent.

        Args:
            rule: Its name.
        """
        return frozenset(self._excused.get(rule, ()))

    def __reduce__(self) -> tuple[type[Reasons], tuple[()]]:
        """Copy and pickle as nothing known: what is offered belongs to a model."""
        return Reasons, ()
