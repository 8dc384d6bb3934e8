"""What memory's books do not tell: what the model saves, which gradients lie around, who holds."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from gradwatch.graph.places import Places
from gradwatch.memory.live import Held, Older, census, describe, grown
from gradwatch.memory.saved import SavedMemory, measure_saved
from gradwatch.memory.story import CLEARED_LATE, NEVER_NONE
from gradwatch.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from gradwatch.memory.live import Kind

MOST_KINDS = 5


class ModelLook:
    """Look at one model: once at what its forward saves, now and then at its gradients.

    Args:
        model: The model, unwrapped.

    Attributes:
        saved: What the first micro-batch's forward kept for the backward.
        held_bytes: Gradients of the step before, as the forward began.
        cleared: What became of them; see `gradwatch.memory.story.Story`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._places, self._undo = model, Places(model), Undo()
        self._before: dict[Kind, int] = {}
        self._older: Older | None = None
        self._open, self._over = False, False
        self.saved = SavedMemory()
        self.held_bytes, self.cleared = 0, ""

    def begin_forward(self, *, gradients: bool) -> None:
        """Set the hooks before the first forward; weigh the gradients that are still there.

        Args:
            gradients: Whether a new step begins, so that there should be none.
        """
        self.take_off()
        if not self._over:
            self._open = True
            self._undo.add(self._places.attach())
        if gradients:
            self.held_bytes, self.cleared = self._gradient_bytes(), ""

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Measure what is saved, the first time."""
        if self._open:
            self._places.paused = True
            own = [*self._model.parameters(), *self._model.buffers()]
            seen = measure_saved(roots, self._places, own)
            self.saved = max(self.saved, seen, key=lambda each: each.total_bytes)
            self._over = True

    def backward_begins(self) -> None:
        """See whether old gradients are gone by now."""
        if self.held_bytes and not self.cleared:
            self.cleared = NEVER_NONE if self._gradient_bytes() else CLEARED_LATE

    def _gradient_bytes(self) -> int:
        grads = (parameter.grad for parameter in self._model.parameters())
        return sum(grad.nbytes for grad in grads if grad is not None and not grad.is_sparse)

    def leave_out(self) -> None:
        """Leave what is alive now out of all counts: what kept it has nothing to do with this."""
        self._older = Older()

    def count(self) -> None:
        """Count the tensors with a graph that are alive."""
        self._before = self._census()

    def kept(self, steps: int) -> list[Held]:
        """Say which tensors with a graph have become more since they were counted.

        Args:
            steps: Optimizer steps since then.
        """
        return self._describe(grown(self._before, self._census(), steps))

    def alive(self, least: int) -> list[Held]:
        """Say which kinds of tensors with a graph there are many of.

        Args:
            least: Fewest that are many.
        """
        counts = sorted(self._census().items(), key=operator.itemgetter(1), reverse=True)
        kinds = [kind for kind, count in counts if count >= least]
        return self._describe(kinds)

    def _census(self) -> dict[Kind, int]:
        return census(self._older or ())

    def _describe(self, kinds: Sequence[Kind]) -> list[Held]:
        if not kinds:
            return []
        return describe(kinds[:MOST_KINDS], self._model, self._older or ())

    def take_off(self) -> None:
        """Take the hooks off."""
        self._open = False
        self._undo()
