"""Which findings become alerts, and under which title."""

from collections.abc import Mapping
from typing import Any

from gradwatch.cooldown import Cooldown
from gradwatch.findings import Finding, Severity
from gradwatch.printable import printable

# W&B refuses titles of 64 characters and more.
LONGEST_TITLE = 63
LONGEST_RULE = 24
MOST_ALERTS = 32
LEVELS: dict[Severity, str] = {"warning": "WARN", "error": "ERROR"}


def alert_title(finding: Finding) -> str:
    """Give a title under 64 characters that keeps the distinguishing end of the layer's name.

    Args:
        finding: What the alert is about.

    Examples:
        >>> layer = "model.encoder.layers.11.attention.output.dense.parent.child.norm"
        >>> alert_title(
        ...     Finding(rule="vanishing", layer=layer, severity="error", step=1, summary="")
        ... )
        'vanishing: ….layers.11.attention.output.dense.parent.child.norm'
    """
    rule = finding.rule[:LONGEST_RULE]
    room = LONGEST_TITLE - len(rule) - len(": ")
    layer = printable(finding.layer)
    return f"{rule}: {layer if len(layer) <= room else '…' + layer[1 - room :]}"


def alert_text(finding: Finding) -> str:
    """Give evidence, cause and remedy as the other text sinks show them."""
    return "\n".join(finding.lines())


class AlertGate:
    """Let a finding through once per (rule, layer) and cooldown, and a bounded number in all.

    The client does not de-duplicate alerts, and a channel that is flooded is muted.
    """

    def __init__(self, cooldown_steps: int) -> None:
        """Start open for everything.

        Args:
            cooldown_steps: Optimizer steps between two alerts of one rule in one layer.
        """
        self._cooldown = Cooldown(cooldown_steps)
        self._sent = 0

    def passes(self, finding: Finding) -> bool:
        """Say whether the finding is worth an alert now, and remember that it was sent."""
        if finding.severity not in LEVELS or self._sent >= MOST_ALERTS:
            return False
        due = self._cooldown.allows(finding)
        self._sent += due
        return due

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed run must know to send nothing twice."""
        return {"last": self._cooldown.state_dict(), "sent": self._sent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Args:
            state: The cooldowns of the earlier run.
        """
        self._cooldown.load_state_dict(state["last"])
        self._sent = int(state["sent"])
