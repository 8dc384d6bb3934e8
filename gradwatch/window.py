"""One accumulation window: the micro-batches between two optimizer steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gradwatch.non_finite.capture import hold
from gradwatch.norms import NormPlan, measurable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from gradwatch.non_finite.capture import Held
    from gradwatch.readings import FloatArray

MOST_FLAGS = 1024


class Flags:
    """A number per micro-batch, copied to the host without waiting and polled."""

    def __init__(self, device: torch.device) -> None:
        """Allocate the host side once, pinned where the device is an accelerator."""
        accelerated = device.type == "cuda"
        self._buffer = torch.zeros(MOST_FLAGS, dtype=torch.float32, pin_memory=accelerated)
        self._host: FloatArray = self._buffer.numpy()
        self._events: dict[int, torch.cuda.Event] = {}
        self._accelerated = accelerated

    def post(self, number: int, value: Tensor) -> None:
        """Send a 0-d device value on its way to slot ``number``."""
        # Only CUDA's copy has an event to ask: another one must be done when this returns.
        self._buffer[number].copy_(value, non_blocking=self._accelerated)
        if self._accelerated:
            event = torch.cuda.Event()
            event.record()
            self._events[number] = event

    def finite(self, number: int) -> bool | None:
        """Tell whether the value is finite; None while it is still on its way."""
        event = self._events.get(number)
        if event is not None and not event.query():
            return None
        return bool(np.isfinite(self._host[number]))


class MicroBatch(NamedTuple):
    """One micro-batch of the window.

    Attributes:
        number: Position in the window, from 0.
        batch_index: Index of the batch in its epoch.
        held: What a replay needs; None where nothing is held (any more).
        root: Its loss as the backward began from it, scaled and divided; None where unknown.
    """

    number: int
    batch_index: int
    held: Held | None
    root: Tensor | None = None


class Window:
    """What is remembered from the first forward of a step to its update.

    Args:
        model: The model whose gradients accumulate.
        keep: Whether micro-batches are held for a replay.
        byte_budget: Most bytes held; beyond it the oldest are let go.

    Attributes:
        beside: Gives the bytes a loop holds beside a batch, by the batch's index.
    """

    def __init__(self, model: nn.Module, *, keep: bool, byte_budget: int) -> None:
        """Start an empty window."""
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self._flags = Flags(self.device)
        self.keeps, self._budget = keep, byte_budget
        self.beside: Callable[[int], int] = _nothing
        self.clear()

    def clear(self) -> None:
        """Let everything go; the next micro-batch opens a new window."""
        self.micro_batches: list[MicroBatch] = []
        self.losses: list[Tensor] = []
        self.backwards = 0
        self.stepped = False
        self._posted = 0
        self._used = 0

    def begin(self, batch: Any, batch_index: int, *, joins: bool) -> None:  # noqa: ANN401
        """Open the next micro-batch, just before its forward.

        Args:
            batch: What the training step is handed.
            batch_index: Its index in the epoch.
            joins: Whether an earlier forward without a backward may share this one's.
        """
        if not joins:
            self._forget_unused()
        self._post_flag()
        self._release()
        number = len(self.micro_batches)
        held = hold(batch, batch_index, number) if self.keeps else None
        self.micro_batches.append(MicroBatch(number, batch_index, held))

    def backward_begins(self, root: Tensor | None) -> None:
        """Keep the root of the backward that is about to begin.

        Args:
            root: The loss as it goes into the backward.
        """
        if root is not None and self.micro_batches:
            self.micro_batches[-1] = self.micro_batches[-1]._replace(root=root.detach())

    def backward_done(self) -> None:
        """Count a backward; the micro-batch it belongs to will not be forgotten."""
        self.backwards += 1
        self._used = len(self.micro_batches)

    def _forget_unused(self) -> None:
        """Forget a micro-batch that never came to a backward (a skipped batch)."""
        if self._used < len(self.micro_batches):
            del self.micro_batches[self._used :]
            del self.losses[self._used :]

    def _post_flag(self) -> None:
        """Flag the accumulated gradient of the micro-batches so far, without a wait."""
        done = len(self.micro_batches)
        if not self.keeps or not done or done >= MOST_FLAGS or not self.backwards:
            return
        total = self._total()
        if total is not None:
            self._flags.post(done - 1, total)
            self._posted = done

    def _total(self) -> Tensor | None:
        grads = [p.grad for p in self._parameters if p.grad is not None and measurable(p.grad)]
        if not grads:
            return None
        sums = [group.values.sum() for group in NormPlan(grads).measure(grads)]
        return torch.stack([value.to(sums[0].device) for value in sums]).sum()

    def _release(self) -> None:
        """Let go of micro-batches known to be clean, then of the oldest beyond the budget."""
        for number in range(self._posted):
            if self._flags.finite(number):
                self._drop(number)
        held = [micro for micro in self.micro_batches if micro.held is not None]
        costs = [self._bytes(micro) for micro in held]
        total = sum(costs)
        for micro, cost in zip(held, costs, strict=True):
            if total <= self._budget:
                break
            total -= cost
            self._drop(micro.number)

    def _bytes(self, micro: MicroBatch) -> int:
        own = micro.held.bytes if micro.held is not None else 0
        return own + self.beside(micro.batch_index)

    def held_batches(self) -> set[int]:
        """Give the indices of the batches that may be run again."""
        return {micro.batch_index for micro in self.micro_batches if micro.held is not None}

    def _drop(self, number: int) -> None:
        self.micro_batches[number] = self.micro_batches[number]._replace(held=None)

    def first_bad(self) -> int:
        """Give the first micro-batch after which the accumulated gradient was not finite."""
        for number in range(self._posted):
            if self._flags.finite(number) is False:
                return number
        return max(len(self.micro_batches) - 1, 0)


def _nothing(_index: int) -> int:
    return 0
