"""What one step's memory means, over statistics as an allocator keeps them."""

from typing import Any

import pytest

from gradwatch.memory import (
    Held,
    Layer,
    MemoryOptions,
    SavedMemory,
    StepMemory,
    Story,
    cross,
    judge_activations,
    judge_held_gradients,
    judge_kept_graphs,
    judge_temporaries,
    snapshot_from_stats,
)
from gradwatch.memory.phases import MIB
from gradwatch.parts import Border

ORDER: list[Border] = ["before_forward", "after_forward", "after_backward", "after_step"]
OPTIONS = MemoryOptions()
BLOCKS = SavedMemory(
    2900 * MIB,
    (
        Layer("stem", 100 * MIB, 0, 1e9),
        Layer("blocks.0", 400 * MIB, 1200 * MIB, 2e9),
        Layer("blocks.1", 400 * MIB, 1200 * MIB, 1e9),
        Layer("blocks.1.attn", 2000 * MIB, 800 * MIB, 9e9),
    ),
)


def story(
    allocated: tuple[int, ...],
    peak: tuple[int, ...],
    reserved: int = 6000,
    total: int = 8000,
    **known: Any,
) -> Story:
    """Play a step, sizes in MiB at its four borders."""
    memory = StepMemory({})
    for border, now, highest in zip(ORDER, allocated, peak, strict=True):
        stats = {
            "allocated_bytes.all.current": now * MIB,
            "allocated_bytes.all.peak": highest * MIB,
            "reserved_bytes.all.current": reserved * MIB,
        }
        seen = snapshot_from_stats(stats)._replace(total_bytes=total * MIB)
        memory = cross(memory, border, seen)
    return Story(memory, **known)


def test_saved_activations_are_told_with_who_saves_and_what_to_checkpoint() -> None:
    full = story((1000, 4000, 1500, 1000), (6000,) * 4, saved=BLOCKS)
    finding = judge_activations(full, 7, OPTIONS)
    assert finding is not None
    assert (finding.rule, finding.layer) == ("memory_activations", "blocks.1.attn")
    assert finding.evidence["forward_MiB"] == 3000
    assert finding.evidence["reserved_forward_MiB"] == 0
    assert finding.evidence["saved_most_MiB"] == (
        "blocks.1.attn 2e+03, blocks.0 400, blocks.1 400, stem 100"
    )
    assert finding.evidence["checkpoint_first_MiB"] == "blocks.1 1.2e+03, blocks.0 1.2e+03"
    assert finding.evidence["recompute_GFLOP"] == 3


@pytest.mark.parametrize(
    "calm",
    [
        story((1000, 4000, 1500, 1000), (6000,) * 4, total=80_000, saved=BLOCKS),
        story((4000, 5000, 4500, 4000), (6000,) * 4, saved=BLOCKS),
        story((1000, 4000, 1500, 1000), (6000,) * 4),
        Story(StepMemory({}), BLOCKS),
    ],
    ids=["plenty of room", "mostly weights", "nothing measured", "no borders"],
)
def test_where_activations_are_no_matter_nothing_is_said(calm: Story) -> None:
    assert judge_activations(calm, 7, OPTIONS) is None


def test_temporaries_are_told_with_the_phase_they_live_in() -> None:
    spiky = story((1000, 3000, 1500, 1000), (3000, 3000, 6000, 6000))
    finding = judge_temporaries(spiky, 7, OPTIONS)
    assert finding is not None
    assert finding.rule == "memory_temporaries"
    assert finding.evidence == {
        "phase": "backward",
        "peak_MiB": 6000,
        "live_MiB": 3000,
        "short_lived_MiB": 3000,
    }


@pytest.mark.parametrize(
    "calm",
    [
        story((1000, 3000, 1500, 1000), (6000,) * 4),
        story((1000, 3000, 1500, 1000), (3000, 3000, 3200, 3200)),
        story((10, 30, 15, 10), (30, 30, 90, 90)),
        Story(StepMemory({})),
    ],
    ids=["a peak of an earlier step", "little", "small", "no borders"],
)
def test_a_peak_that_is_no_spike_of_this_step_says_nothing(calm: Story) -> None:
    assert judge_temporaries(calm, 7, OPTIONS) is None


@pytest.mark.parametrize(
    ("cleared", "remedy"), [("late", "right after the update"), ("kept", "set_to_none=True")]
)
def test_gradients_that_outlive_their_step_are_told(cleared: str, remedy: str) -> None:
    held = story((2000, 5000, 3000, 2000), (6500,) * 4, held_bytes=900 * MIB, cleared=cleared)
    finding = judge_held_gradients(held, 7, OPTIONS)
    assert finding is not None
    assert finding.evidence["gradients_MiB"] == 900
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    "known",
    [
        {"held_bytes": 0, "cleared": ""},
        {"held_bytes": 900 * MIB, "cleared": ""},
        {"held_bytes": 9 * MIB, "cleared": "late"},
        {"held_bytes": 900 * MIB, "cleared": "late", "total": 80_000},
    ],
    ids=["none", "no backward", "small", "plenty of room"],
)
def test_gradients_that_are_no_matter_are_not_told(known: dict[str, Any]) -> None:
    calm = story((2000, 5000, 3000, 2000), (6500,) * 4, **known)
    assert judge_held_gradients(calm, 7, OPTIONS) is None


def test_kept_graphs_are_told_with_what_holds_them() -> None:
    held = [Held("sum", (), 64, 0, 256, "model.losses[…]"), Held("addmm", (2, 3), 32, 32, 768)]
    finding = judge_kept_graphs(held, 32, 70)
    assert finding is not None
    assert finding.rule == "graph_kept"
    assert finding.evidence["held_in"] == "model.losses[…]"
    assert finding.evidence["tensors"] == 96
    assert finding.evidence["with_retain_grad"] == 32
    assert "retain_grad()" in finding.cause
    assert judge_kept_graphs([], 32, 70) is None


def test_where_nothing_is_known_of_the_holder_it_says_so() -> None:
    finding = judge_kept_graphs([Held("sum", (), 64, 0, 256)], 32, 70)
    assert finding is not None
    assert "somewhere in Python" in finding.summary
    assert "retain_grad" not in finding.remedy
