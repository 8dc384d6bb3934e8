"""A caption speaks of what the picture shows, and of nothing else."""

import pytest

from gradwatch.history import History
from gradwatch.pictures import loss_scale, total_norm
from gradwatch.readings import StepRecord

NORM, CLIPPED, RATE = "grad/norm", "grad/norm_clipped", "grad/clip_rate"


def run_of(*keys: str) -> History:
    history = History()
    for step in range(8):
        history.add(StepRecord(step=step, log_step=step, scalars=dict.fromkeys(keys, 1.0)))
    return history


@pytest.mark.parametrize(
    ("keys", "clipping", "below"),
    [
        ((NORM,), False, False),
        ((NORM, CLIPPED), True, False),
        ((NORM, CLIPPED, RATE), True, True),
        ((), False, False),
    ],
    ids=["never clipped", "no rate known", "clipped", "nothing recorded"],
)
def test_the_total_norm_speaks_of_clipping_where_something_clips(
    keys: tuple[str, ...], clipping: bool, below: bool
) -> None:
    caption = total_norm(run_of(*keys)).caption
    assert caption.startswith("The norm of all gradients together")
    assert ("after clipping" in caption) == clipping
    assert ("below, the share of the steps so far that were clipped" in caption) == below
    assert caption.endswith(".")


@pytest.mark.parametrize("scaled", [True, False])
def test_skipped_steps_speak_of_a_scale_where_there_is_one(scaled: bool) -> None:
    keys = ("grad/skipped", "grad/non_finite", *(("grad/loss_scale",) if scaled else ()))
    picture = loss_scale(run_of(*keys))
    assert ("scale" in picture.caption, "Loss scale" in picture.title) == (scaled, scaled)
