"""The callback in a Trainer: the trial in the midst of a fit, and what is left behind it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward, GradientFlowMonitor
from gradwatch.fused.part import FusedBackward as FusedBackwardPart
from tests.fused.lab import QUICK, Offers, SlowNorm, named, quick
from tests.kit import (
    Calm,
    Net,
    ResumableLoader,
    SavesAt,
    build,
    differences,
    fingerprint,
    fit,
    make_half,
    make_samples,
)

CALLS: list[int] = []


def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
    CALLS.append(1)
    return quick(self, x)


class Slow(Calm):
    """Calm, with a layer norm that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = SlowNorm(16)


def fused(sink: MemorySink | None = None, **options: Any) -> FusedBackward:
    chosen = {**QUICK, "after_steps": 2, "providers": (Offers(SlowNorm, forward),), **options}
    return FusedBackward(FusedBackwardOptions(**chosen), sinks=[] if sink is None else [sink])


def run(*callbacks: Any, module: Any = Slow, **options: Any) -> tuple[dict[str, Any], Any]:
    made = build(module)
    CALLS.clear()
    return fingerprint(fit(made, callbacks, **options), made), made


def test_what_is_kept_runs_to_the_end_and_comes_off_then() -> None:
    sink = MemorySink()
    bare, _ = run()
    watched, module = run(fused(sink))
    assert len(CALLS) > 12
    assert "forward" not in vars(module.norm)
    (table,) = [each for each in sink.tables if each.name == "trials"]
    assert [row[4] for row in table.rows] == ["kept", "kept"]
    (finding,) = sink.findings
    assert finding.summary == "a fused forward runs in 1 module from here on"
    assert {record.scalars.get("fused/swapped") for record in sink.records} >= {1.0}
    # The replacement computes the same function, so its losses may differ by rounding only.
    for own, stock in zip(watched["losses"], bare["losses"], strict=True):
        torch.testing.assert_close(own, stock, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"precision": "half"}])
def test_a_trial_that_keeps_nothing_leaves_training_the_same_bits(options: dict[str, Any]) -> None:
    def make() -> dict[str, Any]:
        return {"plugins": [make_half()]} if options.get("precision") == "half" else dict(options)

    def wrong(self: nn.LayerNorm, x: Tensor) -> Tensor:
        return quick(self, x) * 1.01

    bare, _ = run(module=Net, **make())
    tried = fused(mode="force", providers=(Offers(nn.LayerNorm, named(wrong)),))
    watched, _ = run(tried, module=Net, **make())
    assert tried.findings
    assert differences(bare, watched) == []


def test_the_trial_comes_after_the_warm_up_and_only_once() -> None:
    sink = MemorySink()
    run(fused(sink, after_steps=5))
    assert [table.step for table in sink.tables] == [5]


def test_a_resumed_run_puts_back_on_what_was_kept_without_measuring(tmp_path: Any) -> None:
    path = str(tmp_path / "middle.ckpt")
    run(fused(), SavesAt(6, path), loader=ResumableLoader(make_samples()))
    sink = MemorySink()
    run(fused(sink), ckpt_path=path, loader=ResumableLoader(make_samples()))
    (table,) = sink.tables
    assert table.step == 6
    told = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["verdict"], row["reason"], row["after / before"]) for row in told] == [
        ("kept", "kept in the run that was resumed, proved again", None)
    ]
    assert CALLS


def test_a_run_resumed_on_another_device_tries_again(tmp_path: Any) -> None:
    path = str(tmp_path / "middle.ckpt")
    run(fused(), SavesAt(6, path), loader=ResumableLoader(make_samples()))
    saved = torch.load(path, weights_only=False)
    (key,) = [key for key in saved["callbacks"] if key.startswith("FusedBackward")]
    saved["callbacks"][key]["fused_backward"]["device"] = "another card"
    torch.save(saved, path)
    sink = MemorySink()
    run(fused(sink), ckpt_path=path, loader=ResumableLoader(make_samples()))
    (table,) = sink.tables
    assert [row[2] for row in table.rows] == ["LayerNorm by hand", "together"]


def test_what_was_kept_survives_a_run_that_ends_before_its_first_step() -> None:
    part = FusedBackwardPart(FusedBackwardOptions(**QUICK))
    kept = [["old.norm", "LayerNorm", "lab"]]
    state = {"kept": kept, "device": "cpu", "channels_last": True}
    part.load_state_dict(state)
    assert part.state_dict() == state


def test_it_lives_beside_other_monitors() -> None:
    sink = MemorySink()
    run(GradientFlowMonitor(sinks=[sink]), fused())
    assert any(table.name == "trials" for table in sink.tables)
    assert any(record.flow is not None for record in sink.records)


def test_a_provider_that_fails_switches_the_part_off_and_training_goes_on() -> None:
    class Broken:
        name = "broken"

        def propose(self, site: Any) -> Any:
            raise KeyError("no table")

    sink = MemorySink()
    bare, _ = run()
    watched, _ = run(fused(sink, providers=(Broken(),)))
    assert differences(bare, watched) == []
    assert [finding.rule for finding in sink.findings] == ["monitor_error"]
