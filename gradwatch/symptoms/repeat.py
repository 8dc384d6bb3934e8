"""Run one step twice from the same state and compare the bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradwatch.layers import clean_parameter_name
from gradwatch.non_finite.capture import hold, named_tensors, rng_preserved
from gradwatch.non_finite.state import Snapshot, gradients_aside
from gradwatch.symptoms.signs import Repeat


def run_twice(
    model: nn.Module,
    batch: Any,  # noqa: ANN401 - any batch
    loss: Callable[[Any], Tensor],
    *,
    times: int = 2,
) -> Repeat:
    """Run a step's forward and backward twice and tell which numbers are not the same bits.

    Weights, buffers, what the modules hold, the random state and all gradients are afterwards
    as they were before. The batch is put back before each run.

    Args:
        model: The model.
        batch: What the step is run on.
        loss: Computes the loss of a batch, with the model.
        times: Runs; more catch what differs seldom.

    Returns:
        What differs; `find_symptoms` words it.

    Raises:
        ValueError: If fewer than two runs are asked for.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
        >>> run_twice(net, torch.ones(2, 4), lambda batch: net(batch).sum()).loss_differs
        False
    """
    if times < 2:  # noqa: PLR2004 - one run is compared with nothing
        raise ValueError(f"times must be 2 or more, to have something to compare; got {times!r}")
    held = hold(batch)
    snapshot = Snapshot(model, (tensor for _, tensor in named_tensors(batch, "batch")))
    runs, edited = [], held.edited()
    try:
        with rng_preserved(), gradients_aside(model), torch.enable_grad():
            for _ in range(times):
                snapshot.restore()
                held.restore_rng()
                before = hold(batch)
                runs.append(_run(model, batch, loss))
                edited = edited or before.edited()
    finally:
        snapshot.restore()
    return _compared(model, runs, edited)


Run = tuple[Tensor, dict[str, Tensor]]


def _run(model: nn.Module, batch: Any, loss: Callable[[Any], Tensor]) -> Run:  # noqa: ANN401
    for parameter in model.parameters():
        parameter.grad = None
    root = loss(batch)
    root.backward()
    grads = {
        clean_parameter_name(name): each.grad.detach().clone()
        for name, each in model.named_parameters()
        if each.grad is not None
    }
    return root.detach().clone(), grads


def _compared(model: nn.Module, runs: list[Run], edited: tuple[str, ...]) -> Repeat:
    first, *others = runs
    apart: dict[str, float] = {}
    for _, grads in others:
        for name in first[1].keys() | grads.keys():
            distance = _distance(first[1].get(name), grads.get(name))
            if distance:
                apart[name] = max(apart.get(name, 0.0), distance)
    return Repeat(
        loss_differs=any(not _same(first[0], loss) for loss, _ in others),
        parameters=apart,
        edited=edited,
        streams=any(each.is_cuda for each in model.parameters()),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def _distance(one: Tensor | None, other: Tensor | None) -> float:
    """Give the largest difference over the largest number; 0 for the same bits."""
    if one is None or other is None:
        return float("inf")
    if _same(one, other):
        return 0.0
    one, other = one.to_dense().double(), other.to_dense().double()
    largest = float(one.abs().amax())
    return float((one - other).abs().amax()) / largest if largest else float("inf")


def _same(one: Tensor, other: Tensor) -> bool:
    one, other = one.to_dense(), other.to_dense()
    return one.shape == other.shape and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
