"""A person reads why a change was not tried, however narrow the terminal and long the names."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch import Tensor, nn

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from gradwatch.fused.rows import TrialRow, trial_table
from gradwatch.fused.timing import Comparison
from gradwatch.fused.trial import Result, Trial
from gradwatch.fused.unsaid import unsaid
from gradwatch.fused.wardrobe import Wardrobe
from gradwatch.sinks.console import ConsoleSink
from tests.fused.lab import QUICK, Net, Offers, SlowNorm, quick, run_trial
from tests.fused.test_in_training import Slow
from tests.kit import build, fit

SMALL = "its inputs are small: {} elements, under min_elements"


def row(kind: str, reason: str, verdict: Any = "refused", provider: str = "lab") -> TrialRow:
    return TrialRow(layers=("a",), kind=kind, provider=provider, verdict=verdict, reason=reason)


def test_reasons_that_differ_in_numbers_are_said_once_with_all_changes() -> None:
    rows = [
        row("GELU", SMALL.format("64")),
        row("LayerNorm", SMALL.format("1,024")),
        row("Conv2d", "7% less time", "kept"),
        row("Blob", "it is scripted", provider=""),
    ]
    assert unsaid(rows) == [
        f"GELU (lab), LayerNorm (lab): refused, {SMALL.format('64')}",
        "Blob: refused, it is scripted",
    ]


def test_no_more_than_seven_lines_are_said_and_the_rest_is_counted() -> None:
    letters = "abcdefgh"
    rows = [row("Blob", f"reason {each}") for each in letters]
    assert len(unsaid(rows)) == 7
    assert unsaid(rows)[-1] == "… and 2 reasons more"
    rows = [row(f"Blob{each}", "one reason") for each in letters]
    assert unsaid(rows) == [
        "Bloba (lab), Blobb (lab), Blobc (lab), Blobd (lab) and 4 more: refused, one reason"
    ]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"min_elements": 1 << 20}, "LayerNorm by hand (lab): refused, its inputs are small"),
        ({"mode": "advise"}, "LayerNorm by hand (lab): advised, can be tried with mode='auto'"),
    ],
)
def test_the_terminal_says_why_nothing_was_tried(
    options: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {**QUICK, "after_steps": 1, "providers": (Offers(SlowNorm, quick),), **options}
    sink = MemorySink()
    fit(build(Slow), [FusedBackward(FusedBackwardOptions(**chosen), sinks=[sink])], max_steps=3)
    assert f"gradwatch: {line}" in capsys.readouterr().out
    if "mode" not in options:
        assert sink.findings[0].summary == "nothing was changed"
        assert dict(sink.findings[0].evidence) == {"swapped modules": 0, "refused": 1}


def test_the_verdict_is_shown_in_eighty_columns_under_long_names() -> None:
    names = tuple(f"model.encoder.layers.{i}.post_attention_layernorm" for i in range(3))
    tried = TrialRow(
        layers=names, kind="add → LayerNorm", provider="gradwatch", verdict="rejected", reason="no"
    )
    lines: list[str] = []
    ConsoleSink(lines.append, width=80).table(trial_table([tried], 3))
    assert "rejected" in lines[0]
    assert all(len(line) <= 80 for line in lines[0].splitlines())
    assert "norm and 2 more" in lines[0]


def named_otherwise(module: nn.LayerNorm, x: Tensor) -> Tensor:
    return quick(module, x)


@pytest.mark.parametrize("function", [named_otherwise, partial(quick)])
def test_a_function_of_any_name_serves_and_the_module_still_copies_and_pickles(
    function: Callable[..., Any],
) -> None:
    model = Net()
    result = run_trial(model, [Offers(nn.LayerNorm, function)], mode="force")
    assert len(result.kept) == 2
    wardrobe = Wardrobe()
    wardrobe.wear(result.kept)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 - its own bytes
    twin = copy.deepcopy(model)
    wardrobe.take_off()
    x = next(iter(model.parameters())).new_ones(2, 16)
    assert again(x).shape == twin(x).shape == (2, 3)
    assert type(again.blocks[0].norm) is nn.LayerNorm


@pytest.mark.parametrize(("verdict", "timed"), [("kept", True), ("rolled back", False)])
def test_times_of_the_whole_are_evidence_only_where_it_was_kept(
    verdict: Any, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = TrialRow(
        layers=("all kept changes",), kind="together", provider="lab", verdict=verdict,
        reason="measured", comparison=Comparison(0.02, 0.01, 0.5, 0.4, 0.6, 6),
    )  # fmt: skip
    rows = (row("LayerNorm", "measured", verdict), whole)
    monkeypatch.setattr(Trial, "run", lambda *_: Result((), rows))
    sink = MemorySink()
    options = FusedBackwardOptions(**{**QUICK, "after_steps": 1})
    fit(build(Slow), [FusedBackward(options, sinks=[sink])], max_steps=3)
    evidence = dict(sink.findings[0].evidence)
    assert evidence[verdict] == 1
    assert ("after (ms)" in evidence) is timed
