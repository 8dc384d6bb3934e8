"""The options of the look at the autograd graph."""

from __future__ import annotations

from dataclasses import dataclass

from gradwatch.errors import ConfigurationError, positive

FEWEST_ROWS = 10
# PyTorch lets go of nodes that were looked at from within one another, some 200 bytes of stack
# each: more than 40,000 in a row overflow the usual 8 MiB (torch 2.13). Untouched ones do not.
MOST_NODES = 20_000


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """How far the graph is walked and what of it is worth a word.

    Args:
        micro_batches: Most micro-batches whose graph is walked, from the first one on. Two
            suffice unless the second still holds a part of the first; it takes three to tell
            whether that grows.
        most_nodes: Nodes after which a walk stops, and says so; at most 20,000.
        saturating: Saturating functions in a row, without a way round or a normalisation
            between them, that are told.
        rows: Most rows of the table.

    Raises:
        ConfigurationError: If an option cannot be meant.

    Examples:
        >>> GraphOptions(saturating=4).most_nodes
        15000
    """

    micro_batches: int = 3
    most_nodes: int = 15_000
    saturating: int = 8
    rows: int = 60

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, with the option's name."""
        for name in vars(self):
            positive(name, getattr(self, name))
        if self.most_nodes > MOST_NODES:
            message = (
                f"most_nodes must be {MOST_NODES:,} or less: PyTorch frees each node that was "
                f"looked at from within the one before it, on the stack; got {self.most_nodes!r}"
            )
            raise ConfigurationError(message)
        if self.rows < FEWEST_ROWS:
            message = f"rows must be {FEWEST_ROWS} or more, to hold both ends; got {self.rows!r}"
            raise ConfigurationError(message)
