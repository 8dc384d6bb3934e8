"""Words that several findings about the graph share."""

from __future__ import annotations

from collections.abc import Sequence

MOST_STATIONS = 6
CARRIED = (
    "a state is carried from step to step without being detached (a recurrent hidden state, a "
    "running sum, a memory), so that each backward runs through all steps so far"
)


def chain(stations: Sequence[str]) -> str:
    """Show a way from the loss on, its middle left out where it is long.

    Args:
        stations: Names; empty ones are left out.

    Examples:
        >>> chain(["<loss>", "head", "", "net.3", "net.2", "net.1", "net.0", "stem"])
        '<loss> → head → net.3 → … 2 more … → net.0 → stem'
    """
    known = [name for name in stations if name]
    if len(known) > MOST_STATIONS:
        half = MOST_STATIONS // 2
        rest = len(known) - 2 * half + 1
        known = [*known[:half], f"… {rest} more …", *known[len(known) - half + 1 :]]
    return " → ".join(known)
