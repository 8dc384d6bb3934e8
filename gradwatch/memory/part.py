"""Memory is accounted for phase by phase: forward, backward, step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar

from gradwatch.cooldown import Cooldown
from gradwatch.findings import Finding
from gradwatch.memory.phases import MEASURED, StepMemory, cross, latest, memory_scalars
from gradwatch.memory.rules import RULES, MemoryOptions
from gradwatch.memory.snapshot import MemorySnapshot, MemorySource, source_in_use
from gradwatch.parts import Border, Needs, Part
from gradwatch.readings import StepReading


class MemoryDelta(Part):
    """Read memory at the four borders of a step and say what its course means.

    Under accumulation the phases are those of the last micro-batch. A micro-batch without a
    backward has no differences. The numbers of a step stand until the next step is done, so
    they may be asked for late.

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
        self._done = StepMemory({})
        self._history: deque[MemorySnapshot] = deque(maxlen=self.options.window_steps)
        self._fresh = False
        self._cooldown = Cooldown(self.options.cooldown_steps)

    def border(self, border: Border, *, logged: bool = True) -> None:
        """Read memory as a phase begins or ends.

        No rule judges the process's memory, so that it is read on recorded steps only.
        """
        if border not in MEASURED:
            return
        if self._source is None:
            self._source = source_in_use()
        if not logged and self._source.kind == "process":
            return
        self._running = cross(self._running, border, self._source.read())
        if border == "after_step":
            self._finish()

    def _finish(self) -> None:
        self._done = self._running
        self._history.append(latest(self._done))
        self._fresh = True

    def judge(self, reading: StepReading) -> list[Finding]:
        """Look at the steps that are done; the one at hand is not."""
        if not self._fresh or self._source is None or self._source.kind == "process":
            return []
        self._fresh = False
        allocator = {"allocator": self._source.allocator}
        return [
            replace(finding, evidence={**finding.evidence, **allocator})
            for finding in self._find(reading.step)
        ]

    def _find(self, step: int) -> Iterator[Finding]:
        history = list(self._history)
        for rule in RULES:
            finding = rule(history, step, self.options)
            if finding is not None and self._cooldown.allows(finding):
                yield finding

    def scalars(self) -> Mapping[str, float]:
        """Give the memory of the last step that is done, in MiB."""
        return {} if self._source is None else memory_scalars(self._done, self._source.kind)

    def config(self) -> Mapping[str, Any]:
        """Give the options."""
        return asdict(self.options)

    def state_dict(self) -> dict[str, Any]:
        """Give the cooldowns; memory itself begins anew with each process."""
        return {"cooldown": self._cooldown.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the cooldowns of a saved run."""
        self._cooldown.load_state_dict(state["cooldown"])
