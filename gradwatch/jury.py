"""All parts together: each is asked in turn, and one that raises is left out from then on."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, TypeVar

from gradwatch.errors import ConfigurationError, GradwatchError
from gradwatch.parts import Needs, Part, Verdict
from gradwatch.telling import broken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from gradwatch.findings import Finding
    from gradwatch.parts import Border, Part, Scene, Stage
    from gradwatch.readings import StepReading, StepRecord

log = logging.getLogger("gradwatch")
T = TypeVar("T")


class Jury:
    """Ask every part; an error inside one switches that part off, never the run.

    Args:
        parts: The parts, in the order they act.
        tell: Is handed each finding.

    Attributes:
        parts: Those still on.
        needs: What all of them together want measured.
    """

    def __init__(self, parts: Sequence[Part], tell: Callable[[Finding], None]) -> None:
        """Start with every part on."""
        self.parts = list(parts)
        self.needs = functools.reduce(Needs.__or__, (p.needs for p in parts), Needs(norms=False))
        self._tell = tell
        self._step = 0
        self._hear: dict[str, list[Part]] = {}

    def open(self, stage: Stage) -> None:
        """Show the parts where they play."""
        self._ask("open", lambda part: part.open(stage), None)

    def start(self, layers: Sequence[str]) -> None:
        """Tell the parts the layer names; a configuration error passes through."""
        for part in self.parts:
            part.start(layers)

    def accept(self, optimizers: Sequence[Optimizer]) -> None:
        """Ask every part whether it can work with the optimizers.

        Raises:
            ConfigurationError: If a part cannot, with its reason.
        """
        for part in self.parts:
            for optimizer in optimizers:
                reason = part.refuse(optimizer)
                if reason:
                    message = f"{part.name}: {reason}"
                    raise ConfigurationError(message)

    def border(self, border: Border, *, logged: bool) -> None:
        """Pass a border on."""
        self._ask("border", lambda part: part.border(border, logged=logged), None)

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Show what a backward begins from."""
        self._ask("before_backward", lambda part: part.before_backward(roots), None)

    def guard(self, reading: StepReading, scene: Scene) -> Verdict:
        """Hear whether the update may happen; what was found is told at once."""
        self._step = reading.step
        verdict = Verdict()
        for own in self._ask("guard", lambda part: part.guard(reading, scene), Verdict()):
            self._tell_all(own.findings)
            verdict = own if own.action != "proceed" else verdict
        return verdict

    def judge(self, reading: StepReading) -> None:
        """Hear what the step's numbers mean."""
        nothing: Sequence[Finding] = ()
        for findings in self._ask("judge", lambda part: part.judge(reading), nothing):
            self._tell_all(findings)

    def before_update(self, optimizer: Optimizer, reading: StepReading) -> None:
        """Let the parts act on the optimizer."""
        self._ask("before_update", lambda part: part.before_update(optimizer, reading), None)

    def after_batch(self) -> None:
        """Let the parts take back what must not outlive the batch."""
        self._ask("after_batch", lambda part: part.after_batch(), None)

    def close(self) -> None:
        """Let the parts take everything off."""
        self._ask("close", lambda part: part.close(), None)

    def recorded(self, record: StepRecord) -> None:
        """Show the parts a record."""
        self._ask("recorded", lambda part: part.recorded(record), None)

    def scalars(self) -> dict[str, float]:
        """Collect the metrics of the step judged last."""
        merged: dict[str, float] = {}
        nothing: Mapping[str, float] = {}
        for own in self._ask("scalars", lambda part: part.scalars(), nothing):
            merged.update(own)
        return merged

    def _tell_all(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            self._tell(finding)

    def _ask(self, event: str, question: Callable[[Part], T], default: T) -> list[T]:
        return [self._answer(part, question, default) for part in self._hearing(event)]

    def _hearing(self, event: str) -> list[Part]:
        """Give the parts that do something at an event: of most events most parts hear nothing."""
        if event not in self._hear:
            stock = getattr(Part, event)
            self._hear[event] = [
                part
                for part in self.parts
                if event in vars(part) or getattr(type(part), event) is not stock
            ]
        return self._hear[event]

    def _answer(self, part: Part, question: Callable[[Part], T], default: T) -> T:
        try:
            return question(part)
        except GradwatchError:
            raise
        except Exception as error:
            log.debug("part %s failed", part.name, exc_info=True)
            self.parts.remove(part)
            self._hear = {}
            _take_off(part)
            self._tell(broken(part.name, error, self._step))
            return default


def _take_off(part: Part) -> None:
    """Let a part that failed take its hooks off, as far as it still can."""
    for undo in (part.after_batch, part.close):
        with contextlib.suppress(Exception):
            undo()
