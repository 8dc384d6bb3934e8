"""Never cleared is told from cleared late, cleared in part and accumulated."""

import pytest
import torch
from torch import nn

from gradwatch.stale import StaleWatch
from gradwatch.transfer import Transfer


class Loop:
    """A loop over one layer, told to the watch as a session would."""

    def __init__(self) -> None:
        self.layer = nn.Linear(3, 2)
        self.watch = StaleWatch()

    def backward(self) -> None:
        self.watch.backward_begins()
        self.layer(torch.ones(4, 3)).sum().backward()

    def step(self) -> dict[str, float]:
        transfer = Transfer()
        self.watch.load(transfer)
        left = self.watch.unload(transfer.fetch())
        self.watch.stepped(list(self.layer.parameters()))
        names = {parameter: name for name, parameter in self.layer.named_parameters()}
        return {names[parameter]: norm for parameter, norm in left.items()}


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_loop_that_clears_is_never_told(set_to_none: bool) -> None:
    loop = Loop()
    for _ in range(3):
        loop.layer.zero_grad(set_to_none=set_to_none)
        loop.backward()
        assert loop.step() == {}


def test_a_loop_that_never_clears_is_told_from_its_second_step_on() -> None:
    loop = Loop()
    told = []
    for _ in range(3):
        loop.backward()
        told.append(loop.step())
    assert told[0] == {}
    assert told[1] == pytest.approx({"weight": 4.0 * 6**0.5, "bias": 4.0 * 2**0.5})
    assert told[2] == pytest.approx({"weight": 8.0 * 6**0.5, "bias": 8.0 * 2**0.5})


def test_accumulation_within_a_step_is_no_fault() -> None:
    loop = Loop()
    for _ in range(2):
        loop.layer.zero_grad()
        for _ in range(3):
            loop.backward()
        assert loop.step() == {}


def test_only_what_was_left_is_named() -> None:
    loop = Loop()
    loop.backward()
    loop.step()
    loop.layer.bias.grad = None
    loop.backward()
    assert set(loop.step()) == {"weight"}
