"""Each row of a trial says what bounds its layers, with the figures of the profile."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.fused import trial
from gradwatch.fused.bounds import Diagnosis
from gradwatch.fused.rows import trial_table
from gradwatch.fused.trial import Result
from gradwatch.roofline.verdicts import LayerVerdict, VerdictKind
from tests.fused.lab import CLOCK, Net, Offers, SlowNorm, named, quick, run_trial


def verdict(layer: str, kind: VerdictKind, **figures: float) -> LayerVerdict:
    told: dict[str, Any] = dict.fromkeys(LayerVerdict._fields, 0.0)
    told |= {"layer": layer, "kind": kind, "reason": f"{layer} is so"}
    return LayerVerdict(**told | {"forward_seconds": 1e-3, "backward_seconds": 3e-3} | figures)


FAST = verdict("blocks.0.norm", "bandwidth-bound", moved_bytes=4e8, gain_share=0.1)
SMALL = verdict("blocks.1.norm", "launch-bound", kernels=12)


def known(*verdicts: LayerVerdict) -> Diagnosis:
    return Diagnosis(
        verdicts={each.layer: each for each in verdicts},
        copy_bytes_per_second=120e9,
        step_seconds=20e-3,
    )


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([FAST], "bandwidth-bound, 100 of 120 GB/s"),
        ([SMALL], "launch-bound, 12 kernels in 4 ms"),
        ([verdict("a", "compute-bound", flops=8e9)], "compute-bound, 2,000 GFLOP/s"),
        ([verdict("a", "waiting")], "waiting"),
        ([FAST, SMALL._replace(layer="b")],
         "bandwidth-bound (1), 100 of 120 GB/s; launch-bound (1), 12 kernels in 4 ms"),
        ([FAST, FAST._replace(layer="b", moved_bytes=2e8)], "bandwidth-bound, 75 of 120 GB/s"),
        ([FAST._replace(forward_seconds=0.0, backward_seconds=0.0)], "bandwidth-bound"),
    ],
)  # fmt: skip
def test_what_bounds_layers_is_said_in_a_few_words(found: list[LayerVerdict], told: str) -> None:
    assert known(*found).say([each.layer for each in found]) == told


def test_nothing_is_said_of_layers_that_no_profile_knows() -> None:
    assert known(FAST).say(["elsewhere"]) == Diagnosis().say([FAST.layer]) == ""


def test_the_share_of_the_step_is_that_of_the_layers_that_are_known() -> None:
    assert known(FAST).share([FAST.layer, "elsewhere"]) == pytest.approx(0.2)
    assert Diagnosis().share([FAST.layer]) == 0.0


def late(self: nn.LayerNorm, x: Tensor) -> Tensor:
    CLOCK.spend(0.01)
    return quick(self, x)


def wrong(self: nn.LayerNorm, x: Tensor) -> Tensor:
    return quick(self, x) * 1.01


@pytest.mark.parametrize(
    ("forward", "mode", "outcome"),
    [
        (quick, "auto", "kept"),
        (named(late), "auto", "rolled back"),
        (named(wrong), "auto", "rejected"),
        (quick, "advise", "advised"),
    ],
)
def test_rows_of_every_outcome_carry_what_bounds_their_layers(
    forward: Any, mode: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "diagnose", lambda *_: known(FAST, SMALL))
    result = run_trial(Net(SlowNorm), [Offers(SlowNorm, forward)], mode=mode, profile=True)
    row = result.rows[0]
    assert (row.verdict, row.layers) == (outcome, ("blocks.0.norm", "blocks.1.norm"))
    told = "bandwidth-bound (1), 100 of 120 GB/s; launch-bound (1), 12 kernels in 4 ms"
    assert row.bound == told
    (cell,) = cells(result, "bound by")[:1]
    assert cell == told


def cells(result: Result, column: str) -> list[Any]:
    table = trial_table(result.rows, 3)
    return [row[table.columns.index(column)] for row in table.rows]


def test_a_layer_bound_by_its_launches_is_tried_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel in the place of many is what a fused layer is."""
    monkeypatch.setattr(trial, "diagnose", lambda *_: known(SMALL))
    model: Any = Net(SlowNorm)
    model.blocks = nn.Sequential(nn.Identity(), model.blocks[1])
    result = run_trial(model, [Offers(SlowNorm, quick)], profile=True)
    assert [each.layer for each in result.kept] == ["blocks.1.norm"]
    assert cells(result, "bound by")[0] == "launch-bound, 12 kernels in 4 ms"


def test_advice_says_where_the_profile_foretells_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "diagnose", lambda *_: known(SMALL))
    model, options = Net(SlowNorm), {"mode": "advise", "profile": True}
    (row,) = run_trial(model, [Offers(SlowNorm, quick)], **options).rows
    assert row.reason == "can be tried with mode='auto'; the profile foretells no gain"


def test_a_real_profile_fills_the_column() -> None:
    torch.manual_seed(0)
    batch = torch.randn(256, 256), torch.arange(256) % 3
    options = {"mode": "advise", "profile": True}
    result = run_trial(Net(width=256), [Offers(nn.LayerNorm, quick)], batch, **options)
    (told,) = cells(result, "bound by")
    assert told.split(",")[0].split(" ")[0].rstrip(";") in {
        "bandwidth-bound", "launch-bound", "compute-bound", "waiting",
    }  # fmt: skip


def test_without_a_profile_the_column_is_empty() -> None:
    result = run_trial(Net(SlowNorm), [Offers(SlowNorm, quick)])
    assert set(cells(result, "bound by")) == {None}
