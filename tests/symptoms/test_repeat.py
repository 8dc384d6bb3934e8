"""One step run twice: what is repeatable is, what is not is found, and nothing is left behind."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.symptoms import Signs, find_symptoms, run_twice
from tests.kit import differences, random_state


class Noisy(nn.Module):
    """Draws from every generator that is put back, and keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.lin(x)))


def test_dropout_and_running_statistics_are_repeatable() -> None:
    net = Noisy()
    assert run_twice(net, torch.randn(8, 4), lambda batch: net(batch).sum(), times=3) == (
        False, {}, (), False, False,
    )  # fmt: skip


def test_everything_is_as_it_was_before() -> None:
    net, batch = Noisy(), torch.randn(8, 4)
    net(batch).sum().backward()
    before = {
        "state": {name: each.clone() for name, each in net.state_dict().items()},
        "grads": [each.grad.clone() for each in net.parameters() if each.grad is not None],
        "batch": batch.clone(),
        **random_state(),
    }
    run_twice(net, batch, lambda batch: net(batch).sum())
    after = {
        "state": net.state_dict(),
        "grads": [each.grad for each in net.parameters()],
        "batch": batch,
        **random_state(),
    }
    assert differences(before, after) == []


CALLS: Iterator[int] = count(1)


def test_a_forward_with_a_state_of_its_own_is_found() -> None:
    net = nn.Linear(4, 4)
    found = run_twice(net, torch.ones(2, 4), lambda batch: net(batch).sum() * next(CALLS))
    assert found.loss_differs
    (finding,) = find_symptoms(Signs(repeat=found))
    assert finding.evidence["likely"].startswith("the forward")  # type: ignore[union-attr]


def test_a_backward_that_adds_up_in_another_order_is_found_with_the_layer() -> None:
    order = count()

    class Sums(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            # As atomic additions do: the same numbers, added up in another order.
            terms = [grad * share for share in (1e8, 1.0, -1e8)]
            if next(order) % 2:
                terms = [terms[0], terms[2], terms[1]]
            return terms[0] + terms[1] + terms[2]

    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def loss(batch: Tensor) -> Tensor:
        return net[1](Sums.apply(net[0](batch))).sum()  # type: ignore[no-untyped-call]

    found = run_twice(net, torch.ones(2, 4), loss)
    assert not found.loss_differs
    assert set(found.parameters) == {"0.weight", "0.bias"}
    (finding,) = find_symptoms(Signs(repeat=found))
    assert finding.layer == "0"
    assert str(finding.evidence["likely"]).startswith("the backward")


def test_a_step_that_writes_over_its_batch_is_found_though_the_batch_is_put_back() -> None:
    net, batch = nn.Linear(4, 4), {"x": torch.ones(2, 4)}

    def loss(batch: dict[str, Tensor]) -> Tensor:
        return net(batch["x"].mul_(2)).sum() * next(CALLS)

    found = run_twice(net, batch, loss)
    assert found.edited == ("batch['x']",)
    assert torch.equal(batch["x"], torch.ones(2, 4))
    (finding,) = find_symptoms(Signs(repeat=found))
    assert finding.evidence["written_over"] == "batch['x']"


def test_a_nan_is_the_same_nan() -> None:
    net = nn.Linear(4, 4)
    found = run_twice(net, torch.full((2, 4), float("nan")), lambda batch: net(batch).sum())
    assert (found.loss_differs, found.parameters) == (False, {})


def test_one_run_is_nothing_to_compare() -> None:
    net = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="times must be 2 or more"):
        run_twice(net, torch.ones(2, 4), lambda batch: net(batch).sum(), times=1)
