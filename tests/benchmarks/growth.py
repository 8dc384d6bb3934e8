"""How the sentinel's measurement grows with the number of parameter tensors.

Run: python tests/benchmarks/growth.py [--rounds 30]

Beside it the least that any tool could do: torch._foreach_norm of the same tensors, stacked and
brought to the host once. What a step costs on top (rules, memory, holding the batch) does not
belong here; tests/benchmarks/overhead.py has it.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from time import process_time
from typing import NamedTuple

import numpy as np
import torch
from rich.progress import track
from torch import Tensor, nn

from gradwatch.layers import LayerMap
from gradwatch.measure import OptimizerView
from gradwatch.transfer import Transfer

COUNTS = (100, 1_000, 10_000)


class Model(NamedTuple):
    """Tensors with gradients, and gradwatch's view of them."""

    parameters: list[nn.Parameter]
    view: OptimizerView


def model(count: int, side: int) -> Model:
    """Make as many square layers as there are to be tensors, each with a gradient."""
    stack = nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(count)))
    parameters = list(stack.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    layers = LayerMap(stack)
    view = OptimizerView(torch.optim.SGD(parameters, lr=0.1), layers, layers.names)
    return Model(parameters, view)


def sentinel(made: Model, *, weights: bool) -> None:
    """Measure, transfer and read, as before each update."""
    transfer = Transfer()
    made.view.load(transfer, weights=weights)
    made.view.unload(transfer.fetch(), 1.0, None)


def bare(made: Model, *, weights: bool) -> list[float]:
    """Take the norms with one call and bring them to the host with another."""
    tensors: list[Tensor] = [p.grad for p in made.parameters if p.grad is not None]
    if weights:
        tensors += made.parameters
    norms: list[float] = torch.stack(torch._foreach_norm(tensors)).tolist()
    return norms


def milliseconds(run: Callable[[], object]) -> float:
    """Give the time of the processor, which a shared machine stretches least."""
    began = process_time()
    run()
    return (process_time() - began) * 1000


def compare(made: Model, rounds: int, *, weights: bool) -> str:
    """Take turns, in random order, and give one row."""
    runs: list[Callable[[], object]] = [
        lambda: sentinel(made, weights=weights),
        lambda: bare(made, weights=weights),
    ]
    times = np.zeros((rounds, 2))
    for spent in [np.zeros(2), np.zeros(2), *times]:  # the first two settle plans and caches
        for which in random.sample(range(2), 2):
            spent[which] = milliseconds(runs[which])
    own, least = np.median(times, axis=0)
    low, middle, high = np.percentile(times[:, 0] / times[:, 1], [25, 50, 75])
    what = "gradients and weights" if weights else "gradients"
    spread = f"{low:.2f} to {high:.2f}"
    return (
        f"{len(made.parameters):>8,}  {what:<22}{own:>9.2f}{least:>9.2f}{middle:>8.2f}{spread:>15}"
    )


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--side", type=int, default=32, help="tensors are side × side")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"tensors of {args.side}×{args.side}; milliseconds of one thread, medians")
    print(f"{'tensors':>8}  {'':<22}{'gradwatch':>9}{'bare':>9}{'ratio':>8}{'quartiles':>15}")
    rows = []
    for count in track(COUNTS, description="measuring"):
        made = model(count, args.side)
        rows += [compare(made, args.rounds, weights=weights) for weights in (False, True)]
    print("\n".join(rows))


if __name__ == "__main__":
    main()
