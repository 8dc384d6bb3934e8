"""Everything goes over in one read, comes back under its name, and bad values show."""

import math

import pytest
import torch

from gradwatch.transfer import Transfer


def test_values_of_every_dtype_come_back_exactly_under_their_names() -> None:
    transfer = Transfer()
    transfer.add("half", torch.tensor([0.1, 65504.0], dtype=torch.float16))
    transfer.add("double", torch.tensor(math.pi, dtype=torch.float64))
    transfer.add("count", torch.tensor([[1, 2], [3, 2**53 - 1]]))
    transfer.add("flag", torch.tensor(True))
    got = transfer.fetch()
    assert got["half"].tolist() == [float(torch.tensor(0.1).half()), 65504.0]
    assert got["double"].tolist() == [math.pi]
    assert got["count"].tolist() == [1.0, 2.0, 3.0, 2.0**53 - 1]
    assert got["flag"].tolist() == [1.0]


def test_it_is_empty_after_a_fetch() -> None:
    transfer = Transfer()
    transfer.add("one", torch.ones(()))
    assert set(transfer.fetch()) == {"one"}
    assert transfer.fetch() == {}


def test_an_empty_value_comes_back_empty() -> None:
    transfer = Transfer()
    transfer.add("none", torch.empty(0))
    transfer.add("two", torch.ones(2))
    got = transfer.fetch()
    assert got["none"].size == 0
    assert got["two"].tolist() == [1.0, 1.0]


def test_what_needs_a_gradient_is_taken_without_its_graph() -> None:
    transfer = Transfer()
    transfer.add("loss", torch.ones((), requires_grad=True) * 2)
    assert transfer.fetch()["loss"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("values", "bad"),
    [([1.0, 2.0], 0.0), ([1.0, math.nan], 1.0), ([-math.inf], 1.0), ([3.4e38], 0.0)],
)
def test_a_bad_value_is_seen_on_the_device(values: list[float], bad: float) -> None:
    transfer = Transfer()
    assert transfer.any_non_finite().item() == 0.0
    transfer.add("good", torch.ones(3))
    transfer.add("values", torch.tensor(values))
    assert transfer.any_non_finite().item() == bad
