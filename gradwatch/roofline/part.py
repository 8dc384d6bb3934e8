"""The roofline as a part: a few steps of a training are studied, then it is off."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from gradwatch.findings import Finding
from gradwatch.parts import Border, Needs, Part, Stage
from gradwatch.roofline.assemble import assemble, dtypes_of
from gradwatch.roofline.ceilings import measure_ceilings
from gradwatch.roofline.options import RooflineOptions
from gradwatch.roofline.profile import Profile
from gradwatch.roofline.study import Study
from gradwatch.roofline.told import tables_of
from gradwatch.symptoms import Loading, Signs, find_symptoms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from gradwatch.readings import StepReading

RULE = "roofline"


class Roofline(Part):
    """Profile a few steady steps of a run and tell what bounds each layer.

    Args:
        options: Which steps are looked at.

    Attributes:
        profile: The profile; None until it is done.
        loading: How batches are loaded, where whoever runs the fit tells.
    """

    name: ClassVar[str] = "roofline"
    needs = Needs(norms=False)

    def __init__(self, options: RooflineOptions | None = None) -> None:
        """Keep the options; nothing is attached before a fit."""
        self.options = options or RooflineOptions()
        self.profile: Profile | None = None
        self.loading: Loading | None = None
        self._stage: Stage | None = None
        self._study: Study | None = None
        self._step = 0

    def open(self, stage: Stage) -> None:
        """Prepare the study of this fit's model."""
        self._stage, self.profile, self._step = stage, None, 0
        self._study = Study(stage.model, self.options)

    def border(self, border: Border, *, logged: bool = True) -> None:
        """Pass a border on; where the study ends with it, tell."""
        del logged
        if self._study is None:
            return
        with self._dropped_on_error():
            self._study.cross(border)
            if self._study.done:
                self._finish(self._study)
        self._step += border == "after_step"

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Pass on what a backward is about to begin from."""
        if self._study is not None:
            with self._dropped_on_error():
                self._study.before_backward(roots)

    @contextmanager
    def _dropped_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._drop()
            raise

    def _finish(self, study: Study) -> None:
        self._study = None
        evidence, stage = study.evidence, self._stage
        ceilings = measure_ceilings(
            evidence.device, dtypes_of(evidence), refresh=self.options.refresh_ceilings
        )
        self.profile = assemble(evidence, ceilings)
        if stage is not None:
            for table in tables_of(self.profile, self._step):
                stage.show(table)
            for note in self.profile.notes:
                stage.tell(_note(note, self._step))
            signs = Signs(profile=self.profile, loading=self.loading)
            for finding in find_symptoms(signs, self._step):
                stage.tell(finding)

    def judge(self, reading: StepReading) -> list[Finding]:
        """Have nothing to say about a single step."""
        del reading
        return []

    def close(self) -> None:
        """Take everything off; say so where the fit ended before the study."""
        if self._study is not None and self._stage is not None and self._step:
            # The last of them is over when the next one begins.
            needed = self._study.steps_needed + 1
            if self._step < needed:
                self._stage.tell(_too_short(self._step, needed))
        self._drop()
        self._stage = None

    def _drop(self) -> None:
        study, self._study = self._study, None
        if study is not None:
            study.close()

    def config(self) -> Mapping[str, Any]:
        """Give the options."""
        return asdict(self.options)

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle as a part that plays on no model; the profile goes along."""
        return {**vars(self), "_stage": None, "_study": None}


def _note(text: str, step: int) -> Finding:
    return Finding(rule=RULE, layer="<root>", severity="info", step=step, summary=text)


def _too_short(steps: int, needed: int) -> Finding:
    return Finding(
        rule=RULE,
        layer="<root>",
        severity="info",
        step=steps,
        summary=f"the fit ended after {steps} steps, before the profile was done",
        evidence={"steps needed": needed},
        remedy="train longer, or give RooflineOptions fewer warmup_steps and timed_steps; steps "
        "that a gradient scaler skipped do not count",
    )
