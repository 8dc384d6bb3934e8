"""What is known of a step that looks wrong, and the way to find out more."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from gradwatch.non_finite.bundle import Kept, Tried, keep_bundle
from gradwatch.non_finite.program import Suspects
from gradwatch.non_finite.replay import fallback, investigate
from gradwatch.parts import Answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer

    from gradwatch.findings import Finding
    from gradwatch.host import Host
    from gradwatch.non_finite.blame import Blame
    from gradwatch.non_finite.capture import Held
    from gradwatch.non_finite.program import Program
    from gradwatch.ranks import Ranks
    from gradwatch.readings import StepReading
    from gradwatch.window import MicroBatch, Window

LET_GO = "its batch was let go to keep within the byte budget"
ALONE = "another rank cannot run its micro-batch again, and a replay is every rank's or none's"
NOT_WANTED = "replays are turned off"


def drop_gradients(optimizer: Optimizer) -> None:
    """Set every gradient of an optimizer to None: no momentum, no decay, no update."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


class StepScene:
    """Answers a part's questions about the step just read; alike on all ranks.

    Args:
        model: The model, unwrapped.
        window: The micro-batches of the step.
        host: The loop.
        ranks: The processes that train together.
        reading: The step's reading.
        flagged: What the ranks agreed on in the step's transfer; above 0 is trouble.
        order: Layers in execution order.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        window: Window,
        host: Host,
        ranks: Ranks,
        reading: StepReading,
        flagged: float,
        order: Sequence[str],
    ) -> None:
        """Keep what the answers are made of."""
        self._model, self._window, self._host, self._ranks = model, window, host, ranks
        self._reading, self._order = reading, order
        own = self._own_trouble()
        agreed = ranks.gather(own) if flagged > 0 else [own]
        self.trouble = any(bad for bad, _ in agreed)
        self.bad_loss = any(bad for _, bad in agreed)
        self._tried: list[Tried] = []

    @property
    def rank_count(self) -> int:
        """Number of processes that train together."""
        return self._ranks.count

    def _own_trouble(self) -> tuple[bool, bool]:
        reading = self._reading
        weights = bool(np.isinf(reading.parameters.weight_norm).any())
        loss = not np.isfinite(reading.losses).all()
        return bool(reading.non_finite) or weights or loss, loss

    def _micro_batches(self) -> list[MicroBatch]:
        """Give the micro-batch the fault came with, the same on every rank.

        A process by itself goes on to the others, where several forwards share a backward.
        """
        micro, losses = self._window.micro_batches, self._reading.losses
        # By hand a batch may have several losses; then they do not tell the micro-batch.
        told = losses if len(losses) == len(micro) else ()
        bad = [i for i, loss in enumerate(told) if not np.isfinite(loss)]
        own = min([self._window.first_bad(), *bad])
        number = self._ranks.smallest(own, self._window.device)
        others = [own for own in reversed(micro) if own.number != number and own.held]
        return [micro[number], *(others if self._ranks.count == 1 else ())]

    def investigate(self, *, unscaled: bool = False) -> Answer:
        """Run the failing micro-batch again on all ranks and say where the fault was born.

        Args:
            unscaled: Leave the gradient scaler's factor out.
        """
        self._tried.clear()
        candidates = (self._own_blame(m, unscaled=unscaled) for m in self._micro_batches())
        first = next(candidates)
        own = first if first.kind else next((b for b in candidates if b.kind), first)
        self._tried = [tried for tried in self._tried if tried.blame is own]
        blames = self._ranks.gather(own)
        rank = next((rank for rank, blame in enumerate(blames) if blame.kind), 0)
        return Answer(blames[rank], rank, len(self._window.micro_batches))

    def rerun(self) -> tuple[Held, Program] | str:
        """Give the last micro-batch that is held and the way to run it, or why there is none."""
        micro = next((own for own in reversed(self._window.micro_batches) if own.held), None)
        if micro is None or micro.held is None:
            return LET_GO if self._window.keeps else NOT_WANTED
        program = self._program(micro, unscaled=False)
        return program if isinstance(program, str) else (micro.held, program)

    def keep(self, finding: Finding, *, max_bytes: int) -> Kept:
        """Write what the last investigation was made of, on the rank that showed the fault.

        Args:
            finding: What will be told.
            max_bytes: Most bytes of tensors to write.
        """
        folder = self._host.bundle_folder()
        own = Kept()
        if folder is not None and self._tried and finding.rank == self._ranks.rank:
            own = keep_bundle(self._tried[0], finding, folder, max_bytes)
        return self._ranks.gather(own)[finding.rank]

    def _own_blame(self, micro: MicroBatch, *, unscaled: bool) -> Blame:
        suspects = Suspects(
            parameters=self._reading.non_finite,
            loss=None if unscaled else micro.root,
            order=self._order,
        )
        program = self._program(micro, unscaled=unscaled)
        can = int(micro.held is not None and not isinstance(program, str))
        together = self._ranks.smallest(can, self._window.device)
        if micro.held is None or isinstance(program, str) or not together:
            return fallback(suspects, program if isinstance(program, str) else ALONE, micro.held)
        lockstep = self._ranks.count > 1
        blame = investigate(self._model, micro.held, program, suspects, lockstep=lockstep)
        # A recipe only makes the bundle: its failure must not cost the blame.
        with contextlib.suppress(Exception):
            self._remember(micro.held, program, suspects, blame)
        return blame

    def _program(self, micro: MicroBatch, *, unscaled: bool) -> Program | str:
        """Give the way to run a micro-batch again, or why there is none."""
        if micro.held is None:
            return LET_GO if self._window.keeps else NOT_WANTED
        try:
            return self._host.program(micro.held, unscaled=unscaled)
        except Exception as error:  # noqa: BLE001 - the sentinel's word stands without a replay
            return f"{type(error).__name__}: {error}"

    def _remember(self, held: Held, program: Program, suspects: Suspects, blame: Blame) -> None:
        tried = Tried(
            model=self._model,
            held=held,
            recipe=program.recipe(),
            suspects=suspects,
            blame=blame,
            micro_batches=len(self._window.micro_batches),
        )
        self._tried.append(tried)
