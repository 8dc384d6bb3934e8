"""The last word of a trial: what was kept is measured as a whole, by rules of its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.trial import Result, Trial
from gradwatch.ranks import Ranks
from tests.fused.lab import CLOCK, QUICK, Net, Offers, SlowNorm, make_bench, named, quick, run_trial

IMAGES = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(3)


def a_little_faster(self: SlowNorm, x: Tensor) -> Tensor:
    """Take 7.2 ms where the stock norm takes 8."""
    CLOCK.spend(0.0072)
    return quick(self, x)


def slightly(**options: Any) -> Result:
    return run_trial(Net(SlowNorm), [Offers(SlowNorm, named(a_little_faster))], **options)


def test_a_gain_of_a_tenth_is_kept_alone_and_in_the_whole() -> None:
    first, together = slightly().rows
    assert (first.verdict, together.verdict) == ("kept", "kept")
    assert together.comparison is not None
    assert 0.85 < together.comparison.high < 0.95


def test_a_change_has_to_gain_what_was_asked_of_it() -> None:
    result = slightly(min_gain=0.2)
    (row,) = result.rows
    assert (row.verdict, result.kept) == ("rolled back", ())
    assert row.comparison is not None
    assert row.comparison.high < 1


class Convolutions(nn.Module):
    """Two convolutions and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)).flatten(1))


def on_images(seconds: Callable[[bool, int], float]) -> Result:
    """Try channels_last where the step takes what is said of the layout and of the measurement."""
    model = Convolutions()
    bench, taken = make_bench(model, IMAGES), [0]

    def measured(dress: Callable[[], object]) -> float:
        bench.rewind(dress)
        taken[0] += 1
        last = model.second.weight.is_contiguous(memory_format=torch.channels_last)
        return seconds(last, taken[0])

    bench.seconds = measured  # type: ignore[method-assign]
    options: dict[str, Any] = {**QUICK, "channels_last": True, "providers": ()}
    return Trial(bench, FusedBackwardOptions(**options), Ranks()).run()


def test_the_layout_goes_as_well_where_the_whole_does_not_pay() -> None:
    # Two warm-ups and the pairs.
    measurements = 2 * (2 + QUICK["pairs"])
    result = on_images(lambda last, taken: 1.0 if last is (taken > measurements) else 0.8)
    assert not result.channels_last
    assert [(row.kind, row.verdict) for row in result.rows] == [
        ("channels_last", "rolled back"),
        ("together", "rolled back"),
    ]


@pytest.mark.parametrize("gained", [0.0, 0.1])
def test_the_layout_by_itself_is_a_whole_too(gained: float) -> None:
    result = on_images(lambda last, _taken: 1.0 - gained * last)
    assert result.channels_last is (gained > 0)
    kinds = [row.kind for row in result.rows]
    assert kinds == (["channels_last", "together"] if gained else ["channels_last"])


@pytest.mark.parametrize(("device", "told"), [("cpu", ["advised"]), ("mps", [])])
def test_a_layout_is_advised_only_where_it_is_known_to_serve(device: str, told: list[str]) -> None:
    bench = make_bench(Convolutions(), IMAGES)
    bench.device = torch.device(device)
    options: dict[str, Any] = {
        **QUICK, "mode": "advise", "channels_last": True, "providers": (), "min_elements": 10**9,
    }  # fmt: skip
    result = Trial(bench, FusedBackwardOptions(**options), Ranks()).run()
    assert [row.verdict for row in result.rows if row.kind == "channels_last"] == told
