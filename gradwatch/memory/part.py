"""Memory is accounted for phase by phase: forward, backward, step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar

from gradwatch.cooldown import Cooldown
from gradwatch.findings import Evidence, Finding
from gradwatch.memory.checkpoints import saved_table
from gradwatch.memory.look import ModelLook
from gradwatch.memory.options import MemoryOptions
from gradwatch.memory.phases import MEASURED, StepMemory, cross, latest, memory_scalars
from gradwatch.memory.rules import RULES
from gradwatch.memory.snapshot import MemorySnapshot, MemorySource, source_in_use
from gradwatch.memory.story import PHASE_RULES, Story, judge_kept_graphs
from gradwatch.parts import Border, Needs, Part, Stage
from gradwatch.readings import StepReading

if TYPE_CHECKING:
    from torch import Tensor


class MemoryDelta(Part):
    """Read memory at the four borders of a step and say what its course means.

    Under accumulation the phases are those of the last micro-batch. A micro-batch without a
    backward has no differences. The numbers of a step stand until the next step is done, so
    they may be asked for late.

    What the forward saves is measured in the first micro-batch, and shown as a table.

    Args:
        options: When memory is worth a word.
        source: What is read; by default the accelerator in use at the first border, else the
            process.
    """

    name: ClassVar[str] = "memory_delta"
    needs = Needs(norms=False)

    def __init__(
        self, options: MemoryOptions | None = None, source: MemorySource | None = None
    ) -> None:
        self.options = options or MemoryOptions()
        self._source = source
        self._running = StepMemory({})
        self._done = Story(StepMemory({}))
        self._history: deque[MemorySnapshot] = deque(maxlen=self.options.window_steps)
        self._fresh = False
        self._cooldown = Cooldown(self.options.cooldown_steps)
        self._stage: Stage | None = None
        self._look: ModelLook | None = None
        self._steps, self._looked, self._begins = 0, 0, True

    def open(self, stage: Stage) -> None:
        """Learn the model: what it saves is looked at in the first micro-batch."""
        self._stage, self._look = stage, ModelLook(stage.model)
        self._steps, self._looked, self._begins = 0, 0, True

    def border(self, border: Border, *, logged: bool = True) -> None:
        """Read memory as a phase begins or ends.

        No rule judges the process's memory, so that it is read on recorded steps only.
        """
        # A plain loop's backward is heard of here alone, and may be long after its forward.
        if border == "before_backward" and self._look is not None:
            self._look.backward_begins()
        if border not in MEASURED:
            return
        if self._source is None:
            self._source = source_in_use()
        if border == "before_forward" and self._look is not None:
            if self._begins and not self._steps and self.options.live_objects:
                self._look.leave_out()
            self._look.begin_forward(gradients=self._begins and logged)
            self._begins = False
        if border == "after_step":
            self._steps, self._begins = self._steps + 1, True
        if not logged and self._source.kind == "process":
            return
        self._running = cross(self._running, border, self._source.read())
        if border == "after_step":
            self._finish()

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Look at what the forward has saved."""
        if self._look is not None:
            self._look.before_backward(roots)

    def _finish(self) -> None:
        self._done = Story(self._running)
        if self._look is not None:
            self._done = Story(
                self._running, self._look.saved, self._look.held_bytes, self._look.cleared
            )
            self._look.held_bytes, self._look.cleared = 0, ""
        self._history.append(latest(self._running))
        self._fresh = True

    def judge(self, reading: StepReading) -> list[Finding]:
        """Look at the steps that are done; the one at hand is not."""
        self._show(reading.step)
        found = list(self._find_kept(reading.step))
        if self._fresh and self._source is not None and self._source.kind != "process":
            self._fresh = False
            allocator = {"allocator": self._source.allocator}
            found += [
                replace(each, evidence={**each.evidence, **allocator})
                for each in self._find(reading.step)
            ]
        return [finding for finding in found if self._cooldown.allows(finding)]

    def _show(self, step: int) -> None:
        """Show the table with the first step."""
        look, stage = self._look, self._stage
        if look is not None and stage is not None and look.saved.total_bytes:
            stage.show(saved_table(look.saved, step))
            self._stage = None

    def _find(self, step: int) -> Iterator[Finding]:
        history = list(self._history)
        every = [rule(history, step, self.options) for rule in RULES]
        every += [rule(self._done, step, self.options) for rule in PHASE_RULES]
        yield from (self._with_holder(finding) for finding in every if finding is not None)

    def _with_holder(self, finding: Finding) -> Finding:
        """Look for who holds what grows, if that is to be told."""
        due = finding.rule == "memory_growth" and self.options.live_objects
        if not due or self._look is None or not self._cooldown.is_due(finding):
            return finding
        held = self._look.alive(self.options.window_steps // 2)
        evidence: dict[str, Evidence] = {"tensors_with_graph": sum(each.number for each in held)}
        evidence |= {"held_in": held[0].holder} if held and held[0].holder else {}
        return replace(finding, evidence={**finding.evidence, **evidence})

    def _find_kept(self, step: int) -> Iterator[Finding]:
        """Count tensors with a graph after a window of steps, and again after another."""
        window = self.options.window_steps
        if self._look is None or not self.options.live_objects or self._steps == self._looked:
            return
        # A step that was skipped is judged and not counted: one look a count.
        self._looked = self._steps
        if self._steps == window:
            self._look.count()
        elif self._steps == 2 * window:
            found = judge_kept_graphs(self._look.kept(window), window, step)
            yield from (each for each in (found,) if each is not None)

    def after_batch(self) -> None:
        """Take the hooks off."""
        if self._look is not None:
            self._look.take_off()

    def close(self) -> None:
        """Take everything off and hold on to nothing of the model."""
        self.after_batch()
        self._stage = self._look = None

    def scalars(self) -> Mapping[str, float]:
        """Give the memory of the last step that is done, in MiB."""
        if self._source is None:
            return {}
        return memory_scalars(self._done.memory, self._source.kind)

    def config(self) -> Mapping[str, Any]:
        """Give the options."""
        return asdict(self.options)

    def state_dict(self) -> dict[str, Any]:
        """Give the cooldowns; memory itself begins anew with each process."""
        return {"cooldown": self._cooldown.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the cooldowns of a saved run."""
        self._cooldown.load_state_dict(state["cooldown"])

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle as a part that plays on no model."""
        return {**vars(self), "_stage": None, "_look": None}
