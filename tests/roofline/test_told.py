"""A profile as tables, and the example that shows them."""

import importlib
from pathlib import Path

import pytest

from gradwatch.roofline import Ceilings, KernelRow, LayerVerdict, Profile
from gradwatch.roofline.told import tables_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def make_verdict(layer: str, seconds: float) -> LayerVerdict:
    return LayerVerdict(
        layer=layer,
        kind="bandwidth-bound",
        forward_seconds=seconds / 4,
        backward_seconds=seconds * 3 / 4,
        flops=2e6,
        moved_bytes=8e6,
        saved_bytes=4e6,
        kernels=3,
        achieved_bytes_per_second=8e6 / seconds if seconds else 0.0,
        intensity=0.25,
        gain_seconds=seconds / 2,
        gain_share=0.125,
        reason="because",
    )


KERNEL = KernelRow(
    name="gelu",
    layer="act",
    phase="forward",
    count=2,
    total_seconds=1e-3,
    share=0.1,
    median_seconds=5e-4,
    purpose="activation",
    next_kernel="",
    fusable=False,
)
PROFILE = Profile(
    device="toy",
    steps=3,
    step_seconds=0.01,
    phases={"forward": 0.004, "backward": 0.006, "communication": 0.002},
    layers=(make_verdict("quick", 1e-3), make_verdict("slow", 4e-3), make_verdict("none", 0.0)),
    kernels=(KERNEL,),
    ceilings=Ceilings(
        device="toy",
        copy_bytes_per_second=1e10,
        matrix_flops_per_second={"float32": 1e12},
        launch_seconds=5e-6,
    ),
)


def rows_of(name: str) -> list[dict[str, object]]:
    table = next(own for own in tables_of(PROFILE, 7) if own.name == name)
    assert table.step == 7
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_the_slowest_layer_stands_first_with_its_figures_in_their_units() -> None:
    slow, quick, none = rows_of("roofline")
    assert (slow["layer"], quick["layer"]) == ("slow", "quick")
    assert slow["time (ms)"] == 4.0
    assert slow["achieved (GB/s)"] == 2.0
    assert slow["achieved (GFLOP/s)"] == 0.5
    assert slow["gain (% of step)"] == 12.5
    assert (slow["moved (MB)"], slow["saved (MB)"]) == (8.0, 4.0)
    assert none["achieved (GFLOP/s)"] is None


def test_the_ceilings_have_units_a_chart_can_read() -> None:
    told = [(row["value"], row["unit"]) for row in rows_of("ceilings")]
    assert told == [(10.0, "GB/s"), (1000.0, "GFLOP/s"), (5.0, "µs")]


def test_what_lies_within_another_phase_does_not_change_the_shares() -> None:
    rows = {row["phase"]: row for row in rows_of("phases")}
    assert rows["forward"]["share (%)"] == 40.0
    assert rows["communication"]["note"] == "within backward"


def test_a_kernel_without_a_reader_has_none() -> None:
    (row,) = rows_of("kernels")
    assert row["its output is read at once by"] is None
    assert (row["share (%)"], row["median (µs)"]) == (10.0, 500.0)


def test_a_table_without_rows_is_not_told() -> None:
    bare = Profile(
        device="toy",
        steps=0,
        step_seconds=0.0,
        phases={},
        layers=(),
        kernels=(),
        ceilings=PROFILE.ceilings,
    )
    assert [own.name for own in tables_of(bare, 0)] == ["ceilings"]


def test_the_example_finds_a_narrow_network_bound_by_its_launches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("roofline")
    monkeypatch.setattr(example, "quiet", lambda: None)
    example.main(sizes=((2, 16),))
    told = capsys.readouterr().out
    assert "== 2 channels, 16 images" in told
    assert "launch-bound" in told.partition("norm ")[2].partition("\n")[0]
