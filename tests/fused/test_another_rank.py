"""What another rank says holds here as well, at each place where the ranks agree."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.parity import Parity
from gradwatch.fused.trial import LATE, Result, Trial
from gradwatch.ranks import Ranks
from tests.fused.lab import QUICK, Net, Offers, SlowNorm, make_bench, quick

FAULT = "the step raised RuntimeError: out of registers"


class Second(Ranks):
    """This process and one more, which answers the same but where it is told otherwise."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        super().__init__()
        self._answer = answer

    def gather(self, own: Any) -> list[Any]:
        return [own, self._answer(own)]


def tried(kind: type[nn.LayerNorm], answer: Callable[[Any], Any], **options: Any) -> Result:
    """Try what is right, and faster than a slow norm."""
    chosen = FusedBackwardOptions(providers=(Offers(kind, quick),), **{**QUICK, **options})
    return Trial(make_bench(Net(kind)), chosen, Second(answer)).run()


def test_with_one_accord_it_is_kept() -> None:
    assert len(tried(SlowNorm, lambda own: own).kept) == 2


def late(own: Any) -> Any:
    return own is False or own


def disagrees(own: Any) -> Any:
    return Parity(0.1, 0.0, "its output is off") if isinstance(own, Parity) else own


def finds_nothing(own: Any) -> Any:
    return {} if isinstance(own, dict) else own


def fails(own: Any) -> Any:
    return FAULT if isinstance(own, str) else own


@pytest.mark.parametrize(
    ("kind", "answer", "mode", "told"),
    [
        (SlowNorm, late, "auto", {("not tried", LATE)}),
        (SlowNorm, disagrees, "auto", {("rejected", "its output is off")}),
        (SlowNorm, finds_nothing, "auto", set()),
        # While it is measured, and in the steps beside the stock model.
        (SlowNorm, fails, "auto", {("rolled back", FAULT)}),
        (nn.LayerNorm, fails, "force", {("rolled back", FAULT)}),
    ],
)
def test_what_another_rank_finds_holds_here(
    kind: type[nn.LayerNorm], answer: Callable[[Any], Any], mode: str, told: set[tuple[str, str]]
) -> None:
    result = tried(kind, answer, mode=mode)
    assert result.kept == ()
    assert {(row.verdict, row.reason) for row in result.rows} == told


def test_where_a_measurement_fails_on_another_rank_no_times_are_told() -> None:
    assert all(row.comparison is None for row in tried(SlowNorm, fails).rows)


def test_another_rank_that_is_slower_decides() -> None:
    def slow(own: Any) -> Any:
        pairs = isinstance(own, list)
        return [(before, 10 * before) for before, _ in own] if pairs else own

    result = tried(SlowNorm, slow)
    assert result.kept == ()
    assert {row.verdict for row in result.rows} == {"rolled back"}
