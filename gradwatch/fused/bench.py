"""Run one micro-batch again and again from its exact start, and leave no mark."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from gradwatch.non_finite.capture import Held, rng_preserved
from gradwatch.non_finite.muted import wandb_muted
from gradwatch.non_finite.program import Program, each_root
from gradwatch.non_finite.state import Snapshot, gradients_aside
from gradwatch.parts import Border

__all__ = ["Bench", "Dress"]

Dress = Callable[[], object]


def _pass(_border: Border) -> None:
    pass


class Bench:
    """A micro-batch that can be run any number of times; nothing of it is left on the model.

    Args:
        model: The model, as the program calls it.
        held: The micro-batch.
        program: Runs its forward and backward pass.

    Attributes:
        model: The model.
        device: Where its parameters live.
        half_types: Short types that autocast was seen to compute in.
    """

    def __init__(self, model: nn.Module, held: Held, program: Program) -> None:
        """Copy everything a run may change."""
        self.model, self._held, self._program = model, held, program
        first = next(model.parameters(), None)
        self.device = torch.device("cpu") if first is None else first.device
        self.half_types: set[torch.dtype] = set()
        self._trains = [(each, each.requires_grad) for each in model.parameters()]
        self._snapshot = Snapshot(model, (tensor for _, tensor in held.tensors()))

    @contextmanager
    def opened(self) -> Iterator[Bench]:
        """Set gradients and random state aside for a block, and put everything back after it."""
        with ExitStack() as stack:
            stack.enter_context(rng_preserved())
            stack.enter_context(gradients_aside(self.model))
            stack.enter_context(wandb_muted())
            stack.callback(self._snapshot.restore)
            yield self

    def rewind(self, dress: Dress) -> None:
        """Go back to the start of the micro-batch, without gradients.

        Args:
            dress: Puts the forwards on that are to be run: going back takes them off.
        """
        self._snapshot.restore()
        self._held.restore_rng()
        self.undress()
        dress()

    def undress(self) -> None:
        """Drop the gradients of the last run."""
        for parameter, trains in self._trains:
            parameter.grad = None
            parameter.requires_grad_(trains)

    def step(self, cross: Callable[[Border], None] = _pass) -> list[Tensor]:
        """Run forward and backward once; gradients are left in the parameters.

        Args:
            cross: Told the borders between the phases.

        Returns:
            The roots of the backward, detached.
        """
        with torch.enable_grad():
            cross("before_forward")
            roots = self._program.forward()
            kept = [root.detach().clone() for root in each_root(roots)]
            cross("before_backward")
            self._program.backward(roots)
            cross("after_backward")
        return kept

    def run(self, dress: Dress) -> list[Tensor]:
        """Run from the exact start.

        Args:
            dress: Puts the forwards on that are to be run.

        Returns:
            The roots of the backward, detached.
        """
        self.rewind(dress)
        return self.step()

    def seconds(self, dress: Dress) -> float:
        """Take the time of forward and backward, from the exact start.

        Args:
            dress: Puts the forwards on that are to be run.

        Returns:
            Seconds until the device is done.
        """
        self.rewind(dress)
        return self.clock(self.step)

    def clock(self, work: Callable[[], object]) -> float:
        """Take the time of some work.

        Args:
            work: What is done.

        Returns:
            Seconds until the device is done.
        """
        with _uncollected():
            self.wait()
            begun = time.perf_counter()
            work()
            self.wait()
            return time.perf_counter() - begun

    def peak_bytes(self, dress: Dress) -> int | None:
        """Measure the most memory allocated during one run; None where nobody counts it.

        Args:
            dress: Puts the forwards on that are to be run.
        """
        if self.device.type != "cuda":
            return None
        self.rewind(dress)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.step()
        return torch.cuda.max_memory_allocated(self.device)

    def wait(self) -> None:
        """Wait until the device is done."""
        if self.device.type not in ("cpu", "meta"):
            torch.get_device_module(self.device).synchronize()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector out of a measurement."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
