"""What it means that a fault came back, or did not, and what to do next."""

from __future__ import annotations

from typing import NamedTuple

from gradwatch.non_finite.blame import (
    NO_REPLAY,
    NOT_REPRODUCIBLE,
    NOT_RESTORABLE,
    ONLY_COMPILED,
    REPRODUCIBLE,
)


class Meaning(NamedTuple):
    """A verdict in words.

    Attributes:
        means: What it says about the fault.
        next_step: What to do.
    """

    means: str
    next_step: str


MEANINGS = {
    REPRODUCIBLE: Meaning(
        "two replays found the same fault from the same loss: it lies in data, weights and code",
        "mend what is named as the cause, then replay the bundle with the mended model",
    ),
    NOT_RESTORABLE: Meaning(
        "the replayed loss is not the original, bit for bit, or the step edits the batch in place: "
        "something the step depends on lies outside the model, the batch and the random number "
        "generators",
        "look for state that the step itself moves (a counter, a cache, a batch edited in place, "
        "a generator of your own) and keep it on the module; the layer named is a good guess only",
    ),
    NOT_REPRODUCIBLE: Meaning(
        "the loss is the same bit for bit, the fault does not come back: the operations are not "
        "deterministic, or the hardware failed",
        "run with torch.use_deterministic_algorithms(True); if the fault comes on one device "
        "only, test that device",
    ),
    ONLY_COMPILED: Meaning(
        "the same step is finite without compilation",
        "run it with torch.compile(..., backend='aot_eager') to tell the graph from the generated "
        "code; leave the layer uncompiled until the compiler is mended",
    ),
    NO_REPLAY: Meaning(
        "the step was not run again: the layer is the bad one nearest the loss, by its gradients",
        "let the step be replayed where that is possible, or look at the layer and what follows it",
    ),
}


def meaning_of(verdict: str) -> Meaning:
    """Say what a verdict means.

    Args:
        verdict: A verdict, perhaps with its reason behind a colon.

    Examples:
        >>> meaning_of("no replay: replays are turned off").means.partition(":")[0]
        'the step was not run again'
    """
    return MEANINGS[verdict.partition(":")[0]]
