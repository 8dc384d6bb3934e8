"""A session: the events of one training run, from measuring to telling.

measure → one host transfer → judge → tell. The loop around it calls the events;
`gradwatch.host.Host` is the way back to the loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from gradwatch.containment import contained
from gradwatch.errors import NonFiniteGradientError
from gradwatch.jury import Jury
from gradwatch.layers import is_compiled, unwrap
from gradwatch.parts import Stage
from gradwatch.pending import Ledger, Pending
from gradwatch.ranks import Ranks
from gradwatch.reader import StepReader
from gradwatch.reasons import Reasons
from gradwatch.scene import StepScene, drop_gradients
from gradwatch.step import OFF
from gradwatch.telling import Teller, broken
from gradwatch.transfer import Transfer
from gradwatch.undo import Undo
from gradwatch.window import Window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from gradwatch.findings import Finding
    from gradwatch.host import Host
    from gradwatch.parts import Border, Part, Verdict
    from gradwatch.readings import FloatArray, StepReading
    from gradwatch.session_options import SessionOptions
    from gradwatch.sinks.protocol import Sink

log = logging.getLogger("gradwatch")


class Session:
    """Watch one model through one run.

    Args:
        model: The model; wrappers are looked through.
        parts: What is watched.
        sinks: Where it is told; give none on ranks other than 0.
        host: The loop around it.
        options: How it is measured.

    Attributes:
        findings: Everything found so far, on every rank.
        teller: What hands it to the sinks.
        off: True once the session failed and took itself off.
        busy: True while a step is decided; a replay runs the model again unseen.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Sequence[Part],
        sinks: Sequence[Sink],
        host: Host,
        options: SessionOptions,
    ) -> None:
        """Walk the model; nothing is attached yet."""
        self.model, self.host = unwrap(model), host
        self.findings: list[Finding] = []
        self.off = self.busy = False
        self._options = options
        self.teller = Teller(sinks)
        self.jury = Jury(parts, self._tell)
        self._needs = self.jury.needs
        self._ledger = Ledger(self.jury.scalars, with_flow=self._needs.flow)
        self._ranks = Ranks()
        native, compiled = options.backward_hooks == "module", is_compiled(model)
        self._reader = StepReader(
            self.model, host, self._ranks, self._needs, native=native, compiled=compiled
        )
        keep = self._needs.replay
        self.window = Window(self.model, keep=keep, byte_budget=options.byte_budget)
        self._untap, self._steps, self._logged = Undo(), 0, True
        tell, show, say = self._tell, self.teller.table, self.teller.progress
        self.jury.open(Stage(self.model, tell, show, model, Reasons(), say))
        self.jury.start(self._reader.order)

    @contained
    def transfer(self, border: Border) -> None:
        """Notice that a batch begins or ends its way to the device.

        Args:
            border: ``"before_transfer"`` or ``"after_transfer"``.
        """
        self.jury.border(border, logged=self._logged)

    @contained
    def begin_micro_batch(self, batch: Any, batch_index: int, *, joins: bool = False) -> None:  # noqa: ANN401
        """Notice that a forward is about to begin.

        Args:
            batch: What the training step is handed.
            batch_index: Its index in the epoch.
            joins: Whether an earlier forward without a backward may share this one's.
        """
        if self.window.stepped:
            self.window.clear()
        self.window.begin(batch, batch_index, joins=joins)
        self._logged = self._steps == 0 or self.host.is_logged(self.host.clock().log_step)
        self._tap()
        self.jury.border("before_forward", logged=self._logged)

    def _tap(self) -> None:
        sampled = self._logged or self._options.backward_hooks != "sampled"
        self._untap()
        self._untap.add(self._reader.tap(first=self._steps == 0, sampled=sampled))

    @contained
    def end_forward(self, loss: Tensor | None, outputs: Sequence[Tensor] = ()) -> None:
        """Notice that a forward is done.

        Args:
            loss: Its unscaled loss, as the user's code returned it; None where unknown.
            outputs: What the model gave, where the loss made of it will not be seen.
        """
        if loss is not None:
            self.observe_loss(loss)
        if outputs:
            self.jury.before_backward(outputs)
        self.jury.border("after_forward", logged=self._logged)

    @contained
    def observe_loss(self, loss: Tensor) -> None:
        """Remember the unscaled loss of the present micro-batch.

        Args:
            loss: 0-d tensor.
        """
        self.window.losses.append(loss.detach())

    @contained
    def begin_backward(self, root: Tensor | None = None) -> None:
        """Notice that a backward is about to begin.

        Args:
            root: The loss it begins from, scaled and divided; None where unknown.
        """
        self.window.backward_begins(root)
        self.jury.border("before_backward", logged=self._logged)
        if root is not None:
            self.jury.before_backward((root,))
        if self._needs.norms:
            self._reader.stale.backward_begins()

    @contained
    def end_backward(self) -> None:
        """Notice that a backward is done."""
        self.window.backward_done()
        self.jury.border("after_backward", logged=self._logged)

    def before_step(self, optimizer: Optimizer) -> None:
        """Measure, judge and decide, just before an optimizer's update.

        Args:
            optimizer: The optimizer that is about to step.

        Raises:
            NonFiniteGradientError: If the policy says so.
        """
        before = self._ranks.exchanges
        self._before_step(optimizer)
        exchanging = self._ranks.count > 1 and self._needs.norms
        if self.off and exchanging and self._ranks.exchanges == before:
            self._ranks.worst(torch.full((), OFF, device=self.window.device))

    @contained
    def _before_step(self, optimizer: Optimizer) -> None:
        if not self.window.backwards:
            return
        if self._steps == 0:
            coverage = self._reader.settle_order()
            if self._needs.norms:
                self.teller.start(coverage)
        read = self._reader.read(
            optimizer, self.window.losses, self._ledger, first=self._steps == 0
        )
        self._record(read.values, last=False)
        self._steps += 1
        self.window.stepped = True
        if read.flagged >= OFF:
            self.switch_off(RuntimeError("gradwatch failed on another rank"))
            return
        self._decide(optimizer, read.reading, read.flagged)

    def _decide(self, optimizer: Optimizer, reading: StepReading, flagged: float) -> None:
        verdict = self._guard(reading, flagged)
        self.jury.judge(reading)
        self._await_update(optimizer, reading)
        if verdict.action == "raise":
            self._raise(verdict.findings[-1])
        if verdict.action == "skip":
            drop_gradients(optimizer)
        elif not reading.non_finite:
            self.jury.before_update(optimizer, reading)

    def _guard(self, reading: StepReading, flagged: float) -> Verdict:
        scene = StepScene(
            model=self.model,
            window=self.window,
            host=self.host,
            ranks=self._ranks,
            reading=reading,
            flagged=flagged,
            order=self._reader.order,
        )
        self.busy = True
        try:
            return self.jury.guard(reading, scene)
        finally:
            self.busy = False

    def _raise(self, finding: Finding) -> None:
        kept = self.host.announce_checkpoint(finding)
        message = "\n".join([*finding.lines(), kept]).rstrip()
        raise NonFiniteGradientError(message, finding)

    def _await_update(self, optimizer: Optimizer, reading: StepReading) -> None:
        view = self._reader.view(optimizer)
        wanted = reading.logged and self._needs.flow
        pending = Pending(
            reading=reading,
            view=view,
            copies=view.copies() if wanted else None,
            measure_clipped=wanted and self.host.measures_clipped(),
        )
        self._ledger.add(optimizer, pending)

    @contained
    def after_step(self, optimizer: Optimizer) -> None:
        """Notice that an optimizer's update is done (not called where it was skipped).

        Args:
            optimizer: The optimizer that stepped.
        """
        self._ledger.updated(optimizer)
        self.jury.border("after_step", logged=self._logged)
        self._ledger.settle()

    def untap(self) -> None:
        """Take the hooks of a micro-batch off; safe while an optimizer walks its own hooks."""
        self._untap()

    def end_batch(self) -> None:
        """Notice that a batch is over: nothing of its hooks and rates outlives it.

        Not to be called from an optimizer's hook: what a part set there comes off here.
        """
        self._untap()
        self.jury.after_batch()

    def _record(self, values: Mapping[str, FloatArray], *, last: bool) -> None:
        for record in self._ledger.records(values, last=last):
            self.teller.record(record)
            self.jury.recorded(record)

    def _tell(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.teller.finding(finding)

    def switch_off(self, error: Exception) -> None:
        """Take the session off for the rest of the run and say so once.

        Args:
            error: What went wrong.
        """
        log.debug("session failed", exc_info=error)
        self.off = True
        self._untap()
        self.jury.close()
        self._tell(broken("gradwatch", error, self._steps))

    def finish(self) -> None:
        """Flush what waits for a transfer, tell the last step, close the sinks; once."""
        self.end_batch()
        self.jury.close()
        self._finish()
        self.teller.close()
        self.window.clear()

    @contained
    def _finish(self) -> None:
        transfer = Transfer()
        self._ledger.load(transfer)
        self._record(transfer.fetch(), last=True)
