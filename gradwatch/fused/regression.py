"""Does training go the same way? A few steps with the swaps and without, from the same seed.

Two runs that round differently drift apart, so the measure is a drift that is known to be
harmless: the stock model with its weights moved by a few roundings before each step, as much as a
sum of some hundred terms in another order makes; the worst of a few such runs, since one ReLU that
flips outweighs many roundings. The steps are taken on the
weights themselves, by plain gradient descent, and the bench puts every bit back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gradwatch.fused.bench import Bench, Dress
from gradwatch.words import one_line

__all__ = ["Course", "Regression", "guilty"]

T = TypeVar("T")

# Share of the weights' norm that one step moves.
PACE = 1e-3
SLACK = 4.0
ROUNDINGS = 4.0
NUDGED_RUNS = 3


class Course(NamedTuple):
    """Where a short training went.

    Attributes:
        losses: Loss of each step.
        weights: The weights at its end.
    """

    losses: list[float]
    weights: list[Tensor]


class Regression:
    """The stock model's course, to which others are held.

    Args:
        bench: The micro-batch; opened.
        stock: Puts the stock forwards on.
        steps: Length of the course.

    Attributes:
        drift: How far a few roundings of the weights at each step move the course, relative to the
            way it goes.
    """

    def __init__(self, bench: Bench, stock: Dress, steps: int) -> None:
        """Run the stock model: once, again, and with its weights moved by roundings."""
        self._bench, self._steps = bench, steps
        self._weights = [each for each in bench.model.parameters() if each.requires_grad]
        self._start = [each.detach().clone() for each in self._weights]
        self._rate = 0.0
        self._stock = self._run(stock)
        # All at once and not when first asked: several ranks take these steps together.
        runs = [self._run(stock), *(self._run(stock, seed) for seed in range(1, NUDGED_RUNS + 1))]
        self.drift = max(self._distance(course) for course in runs)

    def fault(self, dress: Dress) -> str:
        """Say in what a variant's course departs from the stock model's; empty if in nothing.

        Args:
            dress: Puts its forwards on.
        """
        if not math.isfinite(self.drift):
            return "the stock course is not finite, so that there is no measure"
        try:
            distance = self._distance(self._run(dress))
        except Exception as error:  # noqa: BLE001 - whatever a provider's function raises
            return f"the step raised {one_line(error)}"
        allowed = SLACK * self.drift + torch.finfo(torch.float32).eps
        if distance <= allowed:
            return ""
        return (
            f"after {self._steps} steps it is {distance:.1e} of the way off the stock course, "
            f"where roundings of the weights make {self.drift:.1e}"
        )

    def _run(self, dress: Dress, seed: int = 0) -> Course:
        self._bench.rewind(dress)
        generator = torch.Generator(self._bench.device).manual_seed(seed)
        losses = []
        for _ in range(self._steps):
            if seed:
                self._nudge(generator)
            self._bench.undress()
            losses.append(float(sum(root.sum() for root in self._bench.step())))
            self._descend()
        return Course(losses, [each.detach().clone() for each in self._weights])

    def _nudge(self, generator: torch.Generator) -> None:
        size = ROUNDINGS * torch.finfo(self._shortest()).eps
        with torch.no_grad():
            for each in self._weights:
                signs = torch.rand(each.shape, generator=generator, device=each.device) - 0.5
                each.data.mul_(1 + size * signs.sign().to(each.dtype))

    def _descend(self) -> None:
        pairs = [(each, each.grad) for each in self._weights if each.grad is not None]
        if not self._rate:
            slope = _norm(grad for _, grad in pairs)
            self._rate = PACE * _norm(self._start) / max(slope, 1e-30)
        with torch.no_grad():
            for each, grad in pairs:
                each.data.sub_(grad.to(each.dtype), alpha=self._rate)

    def _distance(self, course: Course) -> float:
        """Give the way between two ends relative to the way gone, or the gap of the losses."""
        apart = _norm(a - b for a, b in zip(course.weights, self._stock.weights, strict=True))
        gone = _norm(b - c for b, c in zip(self._stock.weights, self._start, strict=True))
        known = zip(course.losses, self._stock.losses, strict=True)
        gaps = [abs(a - b) / max(abs(b), 1e-30) for a, b in known]
        found = max(apart / max(gone, 1e-30), *gaps)
        return found if math.isfinite(found) else math.inf

    def _shortest(self) -> torch.dtype:
        """Give the shortest type the model computes in, as far as its autocast and weights tell."""
        types = {each.dtype for each in self._weights if each.is_floating_point()}
        types |= self._bench.half_types
        return max(types, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(each.detach().float().square().sum()) for each in tensors))


def guilty(suspects: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Find by bisection the fewest that fail by themselves.

    Args:
        suspects: All of them together fail.
        fails: Tells whether some fail.

    Returns:
        One, or all of a set whose halves pass by themselves.

    >>> guilty([1, 2, 3, 4, 5], lambda some: 4 in some)
    [4]
    >>> guilty([1, 2, 3, 4], lambda some: 2 in some and 3 in some)
    [1, 2, 3, 4]
    """
    if len(suspects) <= 1:
        return list(suspects)
    middle = len(suspects) // 2
    for half in (suspects[:middle], suspects[middle:]):
        if fails(half):
            return guilty(half, fails)
    return list(suspects)
