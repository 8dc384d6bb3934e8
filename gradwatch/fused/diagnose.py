"""What bounds each layer, measured on the bench."""

from __future__ import annotations

import contextlib
import logging

from gradwatch.fused.bench import Bench, Dress
from gradwatch.fused.bounds import Diagnosis
from gradwatch.roofline.assemble import assemble, dtypes_of
from gradwatch.roofline.ceilings import measure_ceilings
from gradwatch.roofline.options import RooflineOptions
from gradwatch.roofline.study import Study

__all__ = ["diagnose"]

log = logging.getLogger("gradwatch")
FEW = RooflineOptions(warmup_steps=1, timed_steps=3, traced_steps=1)


def diagnose(bench: Bench, dress: Dress) -> Diagnosis:
    """Profile a few runs of the micro-batch.

    Args:
        bench: The micro-batch; opened.
        dress: Puts the forwards on that are to be run.

    Returns:
        What bounds each layer; nothing where the profile failed, and sizes must do.
    """
    study = Study(bench.model, FEW)
    try:
        with contextlib.closing(study):
            for _ in range(1 + FEW.warmup_steps + FEW.timed_steps + FEW.traced_steps):
                bench.rewind(dress)
                bench.step(study.cross)
                study.cross("after_step")
            study.cross("before_forward")
        known = measure_ceilings(bench.device, dtypes_of(study.evidence))
        profile = assemble(study.evidence, known)
        return Diagnosis(
            verdicts={each.layer: each for each in profile.layers},
            copy_bytes_per_second=known.copy_bytes_per_second,
            step_seconds=profile.step_seconds,
        )
    except Exception:
        log.debug("no profile for the trial", exc_info=True)
        return Diagnosis()
