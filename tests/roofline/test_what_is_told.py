"""A profile says how its numbers go together, and what it cannot run on."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradwatch.errors import ConfigurationError
from gradwatch.roofline import Ceilings, Profile, profile
from gradwatch.roofline.told import tables_of

CEILINGS = Ceilings(
    device="toy",
    copy_bytes_per_second=1e10,
    matrix_flops_per_second={"float32": 1e12},
    launch_seconds=5e-6,
)
PROFILE = Profile(
    device="toy",
    steps=3,
    step_seconds=0.01,
    phases={"forward": 0.004, "backward": 0.006, "communication": 0.002},
    layers=(),
    kernels=(),
    ceilings=CEILINGS,
)


def title_of(told: Profile) -> str:
    return next(table.title for table in tables_of(told, 0) if table.name == "phases")


def test_phases_that_add_up_to_the_step_need_no_word() -> None:
    assert title_of(PROFILE) == "Where a step of 10 ms goes, without the profiler"


def test_medians_that_miss_the_steps_median_say_so() -> None:
    uneven = replace(PROFILE, phases={"data_wait": 0.001, "forward": 0.004, "backward": 0.0045})
    assert title_of(uneven).endswith("(each a median; together 9.5 ms, as no step is like another)")


@pytest.mark.parametrize("part", ["weight", "running_mean"])
def test_a_module_that_is_empty_in_part_is_refused_with_the_name_and_the_way_out(part: str) -> None:
    norm = nn.BatchNorm1d(4)
    meta = torch.ones(4, device="meta")
    setattr(norm, part, nn.Parameter(meta) if part == "weight" else meta)
    message = rf"1\.{part} is on the meta device, where .*to_empty.*load_state_dict"
    with pytest.raises(ConfigurationError, match=message):
        profile(nn.Sequential(nn.Linear(4, 4), norm), torch.ones(2, 4))


def test_an_empty_batch_is_refused_as_such() -> None:
    with pytest.raises(ConfigurationError, match=r"the batch is on the meta device.*randn_like"):
        profile(nn.Linear(4, 4), {"input": torch.ones(2, 4, device="meta")})
