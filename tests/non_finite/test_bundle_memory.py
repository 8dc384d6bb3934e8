"""What a plain loop holds for a replay keeps to the byte budget and is let go with the step."""

from typing import Any

import pytest
import torch
from torch import nn

from gradwatch import NonFiniteGradientError, NonFiniteOptions, Watch, watch

WIDE = 4_000
BATCH_BYTES = 8 * 4 * 4
GRADIENT_BYTES = 8 * WIDE * 4


class Loop:
    """Accumulates micro-batches whose gradients at the output are far larger than they are."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, WIDE))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.watched: Watch = watch(self.model, self.optimizer, console=False, **options)

    def accumulate(self, count: int, *, bad: int = -1) -> None:
        for number in range(count):
            x = torch.randn(8, 4)
            x[2, 1] = float("nan") if number == bad else 0.0
            # A loss without an inner product: its gradient is finite whatever the output.
            self.model(x).mul(torch.ones(WIDE)).sum().backward()

    def held_bytes(self) -> list[int]:
        window, host = self.watched._session.window, self.watched._host
        held = [each for each in window.micro_batches if each.held is not None]
        return [host.kept_bytes(each.batch_index) for each in held]


def test_gradients_at_the_outputs_count_toward_the_budget() -> None:
    loop = Loop(byte_budget=3 * GRADIENT_BYTES)
    with loop.watched:
        loop.accumulate(8, bad=0)
        held = loop.held_bytes()
    # The newest is weighed when the next one begins; random states are weighed too.
    assert sum(held[:-1]) <= 3 * GRADIENT_BYTES
    assert len(held) <= 4
    assert len(loop.watched._host._grads) <= 4


def test_a_step_lets_go_of_what_was_held_for_it() -> None:
    loop = Loop()
    with loop.watched:
        for _ in range(3):
            loop.accumulate(2)
            loop.optimizer.step()
            loop.optimizer.zero_grad()
        loop.accumulate(1)
        assert loop.held_bytes() == [GRADIENT_BYTES]
        assert len(loop.watched._host._grads) == 1


def test_a_fault_in_what_was_let_go_is_told_without_a_replay_and_without_a_bundle() -> None:
    loop = Loop(byte_budget=BATCH_BYTES, non_finite=NonFiniteOptions(policy="raise"))
    with loop.watched:
        loop.accumulate(3, bad=0)
        with pytest.raises(NonFiniteGradientError, match="let go to keep within the byte budget"):
            loop.optimizer.step()
    assert "bundle" not in loop.watched.findings[0].evidence
