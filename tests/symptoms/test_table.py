"""Each row of the table: the symptom is told with its figures, and its absence is not."""

from dataclasses import replace
from typing import Any

import pytest

from gradwatch.memory.phases import MIB
from gradwatch.roofline import Ceilings, LayerVerdict, Profile
from gradwatch.roofline.verdicts import VerdictKind
from gradwatch.symptoms import (
    SYMPTOMS,
    Budget,
    Fused,
    Loading,
    Precision,
    Repeat,
    Signs,
    find_symptoms,
)

MS = 1e-3
CARD = Ceilings(
    device="card",
    copy_bytes_per_second=2e12,
    matrix_flops_per_second={"float32": 5e13},
    launch_seconds=2e-6,
)
BF16 = Precision("bfloat16", 2**-7, 1e-4)


def verdict(name: str, kind: VerdictKind, seconds: float, rate: float) -> LayerVerdict:
    return LayerVerdict(
        layer=name,
        kind=kind,
        forward_seconds=seconds / 3,
        backward_seconds=2 * seconds / 3,
        flops=1e9,
        moved_bytes=1e9,
        saved_bytes=1e8,
        kernels=4,
        achieved_bytes_per_second=rate,
        intensity=1.0,
        gain_seconds=seconds / 3,
        gain_share=seconds / 3 / (50 * MS),
        reason="",
    )


CALM = Profile(
    device="card",
    steps=5,
    step_seconds=50 * MS,
    phases={
        "data_wait": 1 * MS,
        "host_to_device": 1 * MS,
        "communication": 9 * MS,
        "communication_hidden": 8 * MS,
    },
    layers=(
        verdict("linear", "compute-bound", 30 * MS, 4e11),
        verdict("norm", "bandwidth-bound", 5 * MS, 1.8e12),
        verdict("slow", "bandwidth-bound", 14 * MS, 0.4e12),
    ),
    kernels=(),
    ceilings=CARD,
    kernel_seconds=(200e-6,) * 200 + (3e-6,) * 100,
)
STORM = replace(CALM, kernel_seconds=(3e-6,) * 3000 + (200e-6,) * 100)
BOUND = replace(CALM, layers=(verdict("norm", "bandwidth-bound", 20 * MS, 1.8e12),))
WAITS = replace(CALM, phases={**CALM.phases, "communication": 30 * MS})
STARVED = replace(CALM, phases={**CALM.phases, "data_wait": 20 * MS})


@pytest.mark.parametrize(
    ("signs", "rule", "evidence"),
    [
        (
            Signs(profile=STORM),
            "small_kernels",
            {"kernels": 3100, "small_kernels": 3000, "small_share_of_step": 0.3},
        ),
        (
            Signs(profile=BOUND),
            "bandwidth_ceiling",
            {"layers": "norm", "share_of_step": 0.4, "achieved_GB_s": 1800, "ceiling_GB_s": 2000},
        ),
        (
            Signs(profile=WAITS),
            "communication_share",
            {"communication_ms": 30, "hidden_ms": 8, "waited_share_of_step": 0.44},
        ),
        (
            Signs(profile=STARVED, loading=Loading(workers=0, accelerated=True)),
            "data_starved",
            {"data_wait_ms": 20, "workers": 0, "pinned": "False"},
        ),
        (
            Signs(fused=Fused("block.0.act", (4 * MS, 2 * MS), (50 * MS, 52 * MS))),
            "slower_after_fusing",
            {"kernel_time_ratio": 0.5, "step_time_ratio": 1.04},
        ),
        (
            Signs(budget=Budget(9000 * MIB, 2000 * MIB, 1000 * MIB)),
            "peak_unexplained",
            {"peak_MiB": 9000, "unexplained_MiB": 6000},
        ),
        (Signs(loss_scale=0.5), "loss_scale_collapsed", {"loss_scale": 0.5}),
        (
            Signs(precision={"a": BF16, "b": BF16}),
            "updates_lost",
            {"dtype": "bfloat16", "update_ratio": 1e-4, "count": 2},
        ),
        (Signs(half_copy_only="float16"), "no_float32_copy", {"dtype": "float16"}),
        (
            Signs(repeat=Repeat(loss_differs=False, parameters={"emb.weight": 1e-6})),
            "differs_run_to_run",
            {"worst": "emb.weight", "relative_difference": 1e-6},
        ),
        (Signs(devices=4), "one_process_many_devices", {"devices": 4}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_symptom_is_told_with_its_figures(
    signs: Signs, rule: str, evidence: dict[str, Any]
) -> None:
    (finding,) = find_symptoms(signs, 9)
    assert (finding.rule, finding.step) == (rule, 9)
    assert {key: finding.evidence[key] for key in evidence} == pytest.approx(evidence)
    assert finding.evidence["checked"]
    assert finding.cause
    assert finding.remedy


@pytest.mark.parametrize(
    "signs",
    [
        Signs(),
        Signs(profile=CALM, loading=Loading()),
        Signs(fused=Fused("a", (4 * MS, 2 * MS), (50 * MS, 49 * MS))),
        Signs(fused=Fused("a", (2 * MS, 4 * MS), (50 * MS, 52 * MS))),
        Signs(budget=Budget(3100 * MIB, 2000 * MIB, 1000 * MIB)),
        Signs(budget=Budget(90 * MIB, 20 * MIB, 10 * MIB)),
        Signs(loss_scale=1024.0),
        Signs(precision={"a": Precision("float32", 2**-23, 1e-4)}),
        Signs(precision={"a": BF16, **dict.fromkeys("bcd", Precision("bfloat16", 2**-7, 0.01))}),
        Signs(repeat=Repeat(loss_differs=False, parameters={})),
    ],
    ids=[
        "nothing known", "a calm profile", "faster", "slower kernels too", "a peak as expected",
        "a small peak", "a healthy scale", "float32 weights", "one layer of four", "the same bits",
    ],
)  # fmt: skip
def test_what_is_no_symptom_says_nothing(signs: Signs) -> None:
    assert find_symptoms(signs) == []


def test_what_differs_is_explained_by_where_it_begins() -> None:
    def likely(**known: Any) -> str:
        repeat = Repeat(**{"loss_differs": False, "parameters": {"w": 1.0}, **known})
        return str(find_symptoms(Signs(repeat=repeat))[0].evidence["likely"])

    assert likely(edited=("batch[0]",)) == "the step writes over its own batch"
    assert likely(loss_differs=True).startswith("the forward")
    assert likely() == "the backward: sums in no fixed order (atomic additions)"
    assert likely(streams=True).endswith("or a race between streams")


def test_waiting_less_than_a_loop_takes_for_itself_is_no_starving() -> None:
    toy = replace(CALM, step_seconds=3e-3, phases={"data_wait": 1.5e-3})
    assert "data_starved" not in {each.rule for each in find_symptoms(Signs(profile=toy))}


def test_pinning_is_told_where_there_is_something_to_copy_to() -> None:
    (here,) = find_symptoms(Signs(profile=STARVED, loading=Loading(workers=0)))
    assert "pinned" not in here.evidence


def test_every_row_has_a_name_of_its_own_and_all_its_words() -> None:
    assert len({row.name for row in SYMPTOMS}) == len(SYMPTOMS) == 11
    for row in SYMPTOMS:
        assert all((row.symptom, row.cause, row.checked, row.remedy))
        assert not row.symptom.endswith(".")
