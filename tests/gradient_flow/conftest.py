"""Real trainings, watched in a plain loop, and readings to ask single rules with."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradwatch import Finding, GradientFlowOptions, NonFiniteOptions, watch
from gradwatch.readings import FloatArray, FlowReading, ParameterReading, StepReading

Loss = Callable[[Tensor, Tensor], Tensor]


def train(
    model: nn.Module,
    batches: Iterable[tuple[Any, Tensor]],
    *,
    loss: Loss = nn.functional.mse_loss,
    rate: float = 1e-2,
    clear: bool = True,
    optimizer: Any = None,
    **options: Any,
) -> tuple[Finding, ...]:
    """Train over the batches and give what was found."""
    chosen = optimizer or torch.optim.Adam(model.parameters(), lr=rate)
    flow = GradientFlowOptions(**options)
    limits = NonFiniteOptions(policy="warn")
    with watch(model, chosen, gradient_flow=flow, non_finite=limits, console=False) as watched:
        for x, y in batches:
            watched.loss(loss(model(x), y)).backward()
            chosen.step()
            if clear:
                chosen.zero_grad()
    return watched.findings


@pytest.fixture
def trained() -> Callable[..., tuple[Finding, ...]]:
    """Hand out the training loop."""
    return train


def read(norms: FloatArray, step: int = 0, **flow: Any) -> StepReading:
    """Give the reading of a step with one parameter a layer."""
    count = len(norms)
    names = tuple(f"net.{i}" for i in range(count))
    has_grad = ~np.isnan(norms)
    weights = flow.pop("weight_norm", np.ones(count))
    usual: dict[str, Any] = {
        "layers": names,
        "grad_norm": norms,
        "weight_norm": weights,
        "has_grad": has_grad,
        "frozen": np.zeros(count, dtype=bool),
        "called": np.ones(count, dtype=bool),
    }
    parameters = ParameterReading(
        names=tuple(f"{name}.weight" for name in names),
        layer=np.arange(count),
        group=np.zeros(count, dtype=np.int64),
        ndim=np.full(count, 2),
        has_grad=has_grad,
        grad_norm=norms,
        weight_norm=weights,
    )
    total = float(np.sqrt(np.nansum(norms**2)))
    return StepReading(
        step=step,
        log_step=step,
        optimizer="",
        parameters=parameters,
        flow=FlowReading(**{**usual, **flow}),
        grad_norm=total,
    )


@pytest.fixture
def reading() -> Callable[..., StepReading]:
    """Hand out readings."""
    return read
