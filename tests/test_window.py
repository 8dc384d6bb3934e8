"""A window holds what a replay needs, within its budget, and forgets what was not used."""

import math

import torch
from torch import nn

from gradwatch.window import Window


class Loop:
    """Micro-batches over one layer; a batch of ``bad`` gives an infinite gradient."""

    def __init__(self, byte_budget: int = 1 << 20) -> None:
        self.layer = nn.Linear(4, 1)
        self.window = Window(self.layer, keep=True, byte_budget=byte_budget)

    def micro_batch(self, index: int, *, bad: bool = False, backward: bool = True) -> None:
        batch = torch.full((2, 4), math.inf if bad else 1.0)
        self.window.begin(batch, index, joins=False)
        loss = self.layer(batch).sum()
        self.window.losses.append(loss.detach())
        if backward:
            self.window.backward_begins(loss)
            loss.backward()
            self.window.backward_done()

    def held(self) -> list[bool]:
        return [micro.held is not None for micro in self.window.micro_batches]


def test_clean_micro_batches_are_let_go_once_they_are_known_to_be_clean() -> None:
    loop = Loop()
    for index in range(3):
        loop.micro_batch(index)
    assert loop.held() == [False, False, True]


def test_the_first_bad_micro_batch_is_kept_and_named() -> None:
    loop = Loop()
    for index, bad in enumerate([False, True, False, False]):
        loop.micro_batch(index, bad=bad)
    assert loop.window.first_bad() == 1
    assert loop.held()[:2] == [False, True]


def test_the_last_one_is_named_where_no_earlier_one_was_bad() -> None:
    loop = Loop()
    for index in range(3):
        loop.micro_batch(index)
    assert loop.window.first_bad() == 2


def test_a_micro_batch_without_a_backward_is_forgotten_with_its_loss() -> None:
    loop = Loop()
    loop.micro_batch(0)
    loop.micro_batch(1, backward=False)
    loop.micro_batch(2)
    assert [micro.batch_index for micro in loop.window.micro_batches] == [0, 2]
    assert len(loop.window.losses) == 2


def test_the_root_of_each_backward_is_kept_without_its_graph() -> None:
    loop = Loop()
    loop.micro_batch(0)
    root = loop.window.micro_batches[0].root
    assert root is not None
    assert not root.requires_grad


def test_nothing_is_left_after_it_was_cleared() -> None:
    loop = Loop()
    loop.micro_batch(0)
    loop.window.clear()
    assert (loop.window.micro_batches, loop.window.losses, loop.window.backwards) == ([], [], 0)
