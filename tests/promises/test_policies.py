"""A skip is a skip by hand, and a run that was stopped goes on where it stood, bit for bit."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwatch import MemorySink, NonFiniteGradientError, NonFiniteOptions
from gradwatch.callbacks import GradWatch
from tests.kit import (
    Calm,
    Net,
    ResumableLoader,
    SkipsByHand,
    build,
    differences,
    fingerprint,
    fit,
    make_half,
    make_loader,
    make_samples,
    watcher,
)

ADAM = partial(Net, partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1))
FUSED = partial(Net, partial(torch.optim.Adam, lr=1e-2, fused=True))
BAD = (6, 17)
RUNS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "plain": (Net, dict),
    "decoupled decay": (ADAM, dict),
    "accumulation": (Net, lambda: {"accumulate_grad_batches": 3}),
    "clipping": (Net, lambda: {"gradient_clip_val": 0.5}),
    "bfloat16": (Net, lambda: {"precision": "bf16-mixed"}),
    "a scaler": (ADAM, lambda: {"plugins": [make_half()]}),
    "a fused optimizer under a scaler": (FUSED, lambda: {"plugins": [make_half()]}),
    "accumulation, clipping and a scaler": (
        Net,
        lambda: {
            "accumulate_grad_batches": 2,
            "gradient_clip_val": 0.5,
            "plugins": [make_half()],
        },
    ),
}


def skipping(**options: Any) -> tuple[GradWatch, MemorySink]:
    return watcher(non_finite=NonFiniteOptions(policy="skip", **options))


@pytest.mark.parametrize("name", RUNS)
def test_a_skip_is_bit_for_bit_the_skip_by_hand(name: str) -> None:
    make, options = RUNS[name]
    callback, sink = skipping()
    # A scaler skips by itself: whoever adds to that breaks a fused optimizer.
    by_hand = [] if "scaler" in name else [SkipsByHand()]
    prints = []
    for callbacks in (by_hand, [callback]):
        module = build(make)
        trainer = fit(module, callbacks, make_loader(28, BAD), log_every_n_steps=1, **options())
        prints.append(fingerprint(trainer, module))
    assert differences(prints[0], prints[1]) == []
    faults = [finding for finding in sink.findings if finding.rule == "non_finite"]
    assert {finding.layer for finding in faults} == {"<input>"}
    assert all("the update is skipped" in finding.summary for finding in faults)
    assert len(faults) == len(sink.findings) >= 2


def test_skipping_stops_after_so_many_in_a_row() -> None:
    callback, sink = skipping(max_skips=2)
    with pytest.raises(NonFiniteGradientError, match="stopped before the update"):
        fit(build(Net), [callback], make_loader(28, range(8, 24)))
    assert [finding.step for finding in sink.findings] == [2, 3, 4]


def test_a_warning_lets_the_update_through_as_it_was() -> None:
    callback, sink = watcher(non_finite=NonFiniteOptions(policy="warn"))
    prints = []
    for callbacks in ([], [callback]):
        module = build(Calm)
        trainer = fit(module, callbacks, make_loader(28, BAD[:1]), max_epochs=1)
        prints.append(fingerprint(trainer, module))
    assert differences(prints[0], prints[1]) == []
    assert "the update goes on (policy 'warn')" in sink.findings[0].summary


class CountsFinished(ResumableLoader):
    """Count a batch as done when the next one is asked for, not when it is handed out."""

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        first, self._resume_at = self._resume_at, 0
        for number in range(first, len(self._batches)):
            self._next = number
            yield self._batches[number]

    _resume_at = 0

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._resume_at = state["next"]


class Stopped:
    """A run of which the third batch is bad, stopped before its update."""

    def __init__(self, **options: Any) -> None:
        self.callback, self.sink = watcher(**options)
        self.module = build(Calm)
        loader = CountsFinished(make_samples(28, [9]))
        with pytest.raises(NonFiniteGradientError) as caught:
            fit(self.module, [self.callback], loader)
        self.error = caught.value


def test_the_weights_stay_those_of_the_last_good_step() -> None:
    stopped = Stopped()
    good = build(Calm)
    fit(good, [], max_steps=2)
    assert differences(dict(good.state_dict()), dict(stopped.module.state_dict())) == []
    assert stopped.error.finding.step == 2
    assert stopped.error.finding.layer == "<input>"


def test_the_checkpoint_resumes_at_the_failing_batch_as_if_nothing_had_been() -> None:
    stopped = Stopped()
    (path,) = Path.cwd().rglob("*.ckpt")
    assert str(path) in str(stopped.error)
    prints = []
    for ckpt_path in (None, str(path)):
        module, callback = build(Calm), watcher()[0]
        loader = CountsFinished(make_samples(28))
        trainer = fit(module, [callback], loader, ckpt_path=ckpt_path)
        prints.append({**fingerprint(trainer, module), "losses": module.losses[-12:]})
    assert len(module.losses) == 12
    assert differences(prints[0], prints[1]) == []


def test_no_checkpoint_is_kept_where_none_is_wanted() -> None:
    stopped = Stopped(non_finite=NonFiniteOptions(checkpoint=False))
    assert list(Path.cwd().rglob("*.ckpt")) == []
    assert "ckpt" not in str(stopped.error)


def test_the_checkpoint_loads_as_tensors_and_primitives() -> None:
    Stopped()
    (path,) = Path.cwd().rglob("*.ckpt")
    saved = torch.load(path, weights_only=True)
    assert saved["global_step"] == 2
    assert all(torch.isfinite(each).all() for each in saved["state_dict"].values())
