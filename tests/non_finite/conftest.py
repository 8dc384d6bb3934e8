"""One training step of a plain loop, run into its fault and then explained."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.non_finite.blame import Blame
from gradwatch.non_finite.capture import hold
from gradwatch.non_finite.program import ClosureProgram, Suspects
from gradwatch.non_finite.replay import investigate

Examine = Callable[..., Blame]


def find_bad(model: nn.Module) -> list[str]:
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not torch.isfinite(parameter.grad.to_dense()).all()
    ]


@pytest.fixture
def examine() -> Examine:
    """Run a step, insist that it really went wrong (or did not), and investigate it."""

    def examine(
        model: nn.Module, run: Callable[[Any], Tensor], batch: object, *, healthy: bool = False
    ) -> Blame:
        held = hold(batch, batch_index=7)
        loss = run(batch)
        loss.backward()
        bad = find_bad(model)
        assert healthy is not (bool(bad) or not torch.isfinite(loss))
        suspects = Suspects(parameters=bad, loss=loss.detach())
        return investigate(model, held, ClosureProgram(run, held.batch), suspects)

    return examine
