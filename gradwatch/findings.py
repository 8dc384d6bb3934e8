"""What a rule says: the one currency between judging and telling."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gradwatch.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

Severity = Literal["info", "warning", "error"]
Evidence = float | int | str

LOSS = "<loss>"
INPUT = "<input>"
OPTIMIZER = "<optimizer>"
ROOT = "<root>"

# Evidence that is a sentence, and how its line begins.
OWN_LINES = {
    "line": "written",
    "inputs": "inputs",
    "gradients in": "gradients",
    "outputs": "outputs",
    "forward inputs": "forward",
    "chain": "chain",
    "replay": "replayed",
    "bundle": "bundle",
}
LINES = (
    "written", "evidence", "inputs", "gradients", "outputs", "forward", "chain", "cause",
    "remedy", "replayed", "bundle",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, where it is, how it is known and what to do.

    Attributes:
        rule: Name of the rule that spoke, such as ``"non_finite"`` or ``"vanishing"``.
        layer: Name of the layer as the user wrote it, or one of ``<loss>``,
            ``<input>``, ``<optimizer>``, ``<root>``.
        severity: ``"info"``, ``"warning"`` or ``"error"``.
        step: Optimizer step (``trainer.global_step``) the finding belongs to.
        summary: One line a person reads first; starts with a verb or a noun, no full stop.
        evidence: Numbers and words behind it; units stand in the keys.
        cause: What brought it about, as far as it is known.
        remedy: What to do about it.
        rank: Rank whose data showed it.
    """

    rule: str
    layer: str
    severity: Severity
    step: int
    summary: str
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    cause: str = ""
    remedy: str = ""
    rank: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Give the finding as plain containers, ready for JSON.

        Examples:
            >>> Finding(
            ...     rule="dead", layer="net.0", severity="warning", step=3, summary="no gradient"
            ... ).as_dict()["layer"]
            'net.0'
        """
        return asdict(self)

    def lines(self) -> list[str]:
        """Give the finding as the few lines every text sink shows.

        The first line carries step, layer and summary; evidence, cause and
        remedy follow where there are any. What is a sentence of its own among
        the evidence gets a line of its own.

        Examples:
            >>> told = {"batch": 17, "line": "model.py:88: scores.softmax(-1)"}
            >>> Finding(
            ...     rule="non_finite",
            ...     layer="attn",
            ...     severity="error",
            ...     step=1204,
            ...     summary="NaN born in attn",
            ...     evidence=told,
            ... ).lines()[1:]
            ['  written   model.py:88: scores.softmax(-1)', '  evidence  batch 17']
        """
        short = {name: value for name, value in self.evidence.items() if name not in OWN_LINES}
        numbers = ", ".join(f"{name} {_short(value)}" for name, value in short.items())
        known = {"evidence": numbers, "cause": self.cause, "remedy": self.remedy}
        known |= {own: str(self.evidence.get(key, "")) for key, own in OWN_LINES.items()}
        rest = ((name, known[name]) for name in LINES)
        rank = f" on rank {self.rank}" if self.rank else ""
        head = f"{self.rule} in {self.layer} at step {self.step:,}{rank}: {self.summary}"
        lines = [head, *(f"  {name:<10}{text}" for name, text in rest if text)]
        return [printable(line) for line in lines]


def _short(value: Evidence) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
