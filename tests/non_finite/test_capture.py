"""What is held of a micro-batch survives what the training step does to it."""

import random
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradwatch.non_finite.capture import hold, named_tensors, rng_preserved

Pair = namedtuple("Pair", "x y")  # noqa: PYI024 - untyped ones are what people have


@dataclass
class Sample:
    x: Tensor
    weight: Tensor


def draw() -> tuple[float, ...]:
    generator = np.random.rand
    return (torch.rand(1).item(), random.random(), float(generator()))  # noqa: S311


@pytest.mark.parametrize(
    "empty", [lambda b: b.pop("x"), lambda b: b.clear(), lambda b: b["deep"].append(1)]
)
def test_containers_the_step_empties_are_whole_in_the_record(
    empty: Callable[[dict[str, Any]], object],
) -> None:
    batch = {"x": torch.ones(3), "deep": [torch.zeros(2)]}
    held = hold(batch)
    empty(batch)
    assert [path for path, _ in held.tensors()] == ["batch['x']", "batch['deep'][0]"]


def test_a_mapping_of_its_own_kind_is_copied_and_keeps_its_kind() -> None:
    class Encoding(UserDict[str, Tensor]):
        pass

    batch = Encoding({"ids": torch.ones(3)})
    held = hold(batch)
    batch.pop("ids")
    assert type(held.batch) is Encoding
    assert "ids" in held.batch


def test_tensors_are_shared_and_not_copied() -> None:
    x = torch.ones(3)
    assert hold((x,)).batch[0] is x


def test_an_edit_in_place_is_told_by_its_path() -> None:
    batch = (torch.ones(3), {"mask": torch.ones(3)})
    held = hold(batch)
    batch[1]["mask"].zero_()
    assert held.edited() == ("batch[1]['mask']",)


def test_an_edit_before_it_was_held_is_none() -> None:
    assert hold(torch.ones(3).mul_(2)).edited() == ()


def test_a_tensor_from_inference_mode_can_be_held() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
    assert hold(x).edited() == ()


@pytest.mark.parametrize(
    ("batch", "paths"),
    [
        (torch.ones(1), ["batch"]),
        (Pair(torch.ones(1), [torch.ones(1)]), ["batch.x", "batch.y[0]"]),
        (Sample(torch.ones(1), torch.ones(1)), ["batch.x", "batch.weight"]),
        ([torch.ones(1), "text", None, 3], ["batch[0]"]),
        ("text", []),
    ],
)
def test_tensors_are_called_as_they_would_be_written_in_code(
    batch: object, paths: list[str]
) -> None:
    assert [path for path, _ in hold(batch).tensors()] == paths


def test_a_container_inside_itself_ends() -> None:
    batch: list[Any] = [torch.ones(1)]
    batch.append(batch)
    assert len(list(named_tensors(batch, "batch"))) < 20


def test_every_generator_goes_back_to_the_start_of_the_micro_batch() -> None:
    held = hold(None)
    first = draw()
    held.restore_rng()
    assert draw() == first


def test_a_preserved_block_draws_nothing_from_the_run() -> None:
    held = hold(None)
    expected = draw()
    held.restore_rng()

    @rng_preserved()
    def draw_and_fail() -> float:
        return draw()[0] / 0

    with pytest.raises(ZeroDivisionError):
        draw_and_fail()
    assert draw() == expected


def test_holding_advances_no_generator() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    hold(torch.ones(3))
    assert torch.equal(torch.rand(1), expected)


def test_bytes_count_the_batch_and_size_is_its_number_of_samples() -> None:
    small, large = hold((torch.ones(4, 2),)), hold((torch.ones(4, 1002),))
    assert large.bytes - small.bytes == 4 * 1000 * 4
    assert large.size == 4
    assert hold({"step": torch.tensor(3)}).size is None
