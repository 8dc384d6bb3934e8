"""Prove candidates on live calls, and look at one by itself where the whole step got slower."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

import torch
from torch import Tensor

from gradwatch.fused.bench import Bench, Dress
from gradwatch.fused.observe import record
from gradwatch.fused.operation import Call, Candidate, Function, Operation
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.parity import Parity, check
from gradwatch.fused.rows import Rows
from gradwatch.fused.runs import bare_copy, half_set
from gradwatch.hooks import tensors_in
from gradwatch.ranks import Ranks
from gradwatch.words import one_line

__all__ = ["Proof"]

NOT_CALLED = "it is not called in this step, or gets no gradient"
LOOKS = 5

Calls = list[Call | None]


class Proof:
    """Holds candidates against the functions they would replace.

    Args:
        bench: The micro-batch; opened.
        options: How long a first call may take.
        ranks: The processes that train together; all prove the same candidates.
        rows: Is told what does not agree.
    """

    def __init__(
        self, bench: Bench, options: FusedBackwardOptions, ranks: Ranks, rows: Rows
    ) -> None:
        """Keep what is proved with."""
        self._bench, self._options, self._ranks, self._rows = bench, options, ranks, rows

    def prove(self, group: Sequence[Candidate], dress: Dress) -> tuple[list[Candidate], Parity]:
        """Give those that agree on every rank, and the worst of their errors.

        Args:
            group: The candidates.
            dress: Puts the forwards on that the model runs without them.
        """
        proved, worst = [], Parity(0.0, 0.0)
        rejected: dict[str, list[Candidate]] = {}
        for each in group:
            own = self._parity(each, dress)
            reasons = [found.reason for found in self._ranks.gather(own) if found.reason]
            if reasons:
                rejected.setdefault(reasons[0], []).append(each)
                continue
            proved.append(each)
            worst = max(worst, own)
        self._rows.reject(rejected)
        return proved, worst

    def _parity(self, candidate: Candidate, dress: Dress) -> Parity:
        worst, calls = Parity(0.0, 0.0), self._calls(candidate, dress)
        if isinstance(calls, str):
            return Parity(0.0, 0.0, calls)
        for operation, call in zip(candidate.operations, calls, strict=True):
            if call is None or not any(grad is not None for grad in call.gradients):
                return Parity(0.0, 0.0, NOT_CALLED)
            own = check(operation, candidate.module, call, self._options.compile_seconds)
            if not own.agrees:
                return own
            worst = max(worst, own)
        return worst

    def _calls(self, candidate: Candidate, dress: Dress) -> Calls | str:
        try:
            return record(self._bench, dress, candidate)
        except Exception as error:  # noqa: BLE001 - a block that was rewritten wrongly
            return f"the step raised {one_line(error)}"

    def alone(self, candidate: Candidate, dress: Dress) -> tuple[float, float] | None:
        """Take the time of a candidate's functions without the step around them.

        Args:
            candidate: One that agrees.
            dress: Puts the forwards on that the model runs without it.

        Returns:
            Seconds of the stock functions and of those that would replace them, forward and
            backward; None where one cannot be run.
        """
        calls = self._calls(candidate, dress)
        if isinstance(calls, str):
            return None
        try:
            pairs = [
                self._pair(operation, candidate, call)
                for operation, call in zip(candidate.operations, calls, strict=True)
                if call is not None
            ]
        except Exception:  # noqa: BLE001 - whatever a provider's function raises
            return None
        return sum(stock for stock, _ in pairs), sum(fused for _, fused in pairs)

    def _pair(self, operation: Operation, candidate: Candidate, call: Call) -> tuple[float, float]:
        paths = operation.members
        stock, fused = (
            self._once(function, candidate, paths, call)
            for function in (operation.stock, operation.fused)
        )
        looks = [(self._bench.clock(stock), self._bench.clock(fused)) for _ in range(LOOKS)]
        return median(first for first, _ in looks), median(second for _, second in looks)

    @staticmethod
    def _once(
        function: Function, candidate: Candidate, paths: Sequence[str], call: Call
    ) -> Callable[[], object]:
        """Give forward and backward of a function on copies of all it touches."""
        twins = [bare_copy(candidate.module.get_submodule(path)) for path in paths]
        wanted = [w for twin in twins for w in twin.parameters() if w.requires_grad]

        def once() -> object:
            inputs = [_node(each) for each in call.inputs]
            leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
            with half_set(call.half), torch.enable_grad():
                outputs = list(tensors_in(function(*twins, *inputs, **call.kwargs)))
                roots = list(_roots(outputs, call))
                return torch.autograd.grad(
                    [y for y, _ in roots], [*leaves, *wanted], [g for _, g in roots],
                    allow_unused=True,
                )  # fmt: skip

        once()
        return once


def _node(value: object) -> object:
    """Give an input of its own node: a leaf must not be written to in place."""
    if not isinstance(value, Tensor):
        return value
    leaf = value.detach().clone().requires_grad_(value.requires_grad)
    return leaf.clone() if leaf.requires_grad else leaf


def _roots(outputs: Sequence[Tensor], call: Call) -> Iterator[tuple[Tensor, Tensor]]:
    for y, grad in zip(outputs, call.gradients, strict=False):
        if grad is not None and y.requires_grad:
            yield y, grad
