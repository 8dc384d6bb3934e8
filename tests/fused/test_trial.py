"""Prove, measure, keep or roll back: the loop on models of which the answer is known."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.errors import ConfigurationError
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.providers import Site
from gradwatch.fused.rows import trial_table
from gradwatch.fused.trial import Trial
from gradwatch.ranks import Ranks
from tests.fused.lab import (
    CLOCK,
    QUICK,
    Net,
    Offers,
    SlowNorm,
    loss_of,
    make_batch,
    make_bench,
    named,
    quick,
    reason_of,
    run_trial,
    verdicts,
)


def late(self: nn.LayerNorm, x: Tensor) -> Tensor:
    """Be right, and slow."""
    CLOCK.spend(0.005)
    return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


def test_what_is_right_and_faster_is_kept() -> None:
    model = Net(SlowNorm)
    result = run_trial(model, [Offers(SlowNorm, quick)])
    assert [each.layer for each in result.kept] == ["blocks.0.norm", "blocks.1.norm"]
    first, together = (row for row in result.rows if row.verdict == "kept")
    assert first.comparison is not None
    assert first.comparison.high < 1
    assert first.comparison.after_seconds < first.comparison.before_seconds
    assert "less time" in first.reason
    assert (together.kind, together.layers) == ("together", ("all kept changes",))


def test_what_is_right_and_slower_is_rolled_back() -> None:
    result = run_trial(Net(), [Offers(nn.LayerNorm, named(late))])
    assert result.kept == ()
    assert verdicts(result) == {"LayerNorm": "rolled back"}
    assert "more time" in reason_of(result, "rolled back")


def test_two_providers_compete_and_the_faster_one_is_worn() -> None:
    def half(self: nn.LayerNorm, x: Tensor) -> Tensor:
        CLOCK.spend(0.003)
        return quick(self, x)

    providers = [Offers(SlowNorm, named(half), "half"), Offers(SlowNorm, quick, "quick")]
    result = run_trial(Net(SlowNorm), providers)
    assert {each.provider for each in result.kept} == {"quick"}
    told = [(row.provider, row.verdict) for row in result.rows]
    assert told[:2] == [("half", "replaced"), ("quick", "kept")]


def test_one_member_that_is_wrong_does_not_take_the_others_along() -> None:
    def sometimes(self: nn.LayerNorm, x: Tensor) -> Tensor:
        return quick(self, x) * (1.5 if self.eps > 1e-4 else 1.0)

    model: Any = Net()
    model.blocks[1].norm.eps = 1e-3
    result = run_trial(model, [Offers(nn.LayerNorm, named(sometimes))], mode="force")
    assert [each.layer for each in result.kept] == ["blocks.0.norm"]
    assert [(row.layers, row.verdict) for row in result.rows] == [
        (("blocks.1.norm",), "rejected"),
        (("blocks.0.norm",), "kept"),
    ]


class Treacherous:
    """Right on the trial's first calls of a layer, wrong later: only training shows it."""

    name = "treacherous"

    def __init__(self, guilty: nn.Module, calls: int) -> None:
        self.left, self.guilty = calls, guilty

    def propose(self, site: Site) -> Any:
        if type(site.module) is not nn.LayerNorm:
            return None

        def forward(module: nn.LayerNorm, x: Tensor) -> Tensor:
            if module is self.guilty:
                return quick(module, x) + 0.05 * x
            return quick(module, x)

        return forward


def test_a_swap_that_leads_training_astray_is_found_by_bisection() -> None:
    model: Any = Net()
    # Parity runs on copies, so that nothing but training meets the very module.
    result = run_trial(model, [Treacherous(model.blocks[1].norm, 0)], mode="force")
    assert [each.layer for each in result.kept] == ["blocks.0.norm"]
    (row,) = [row for row in result.rows if row.verdict == "rolled back"]
    assert row.layers == ("blocks.1.norm",)
    assert "of the way off the stock course" in row.reason


def test_changes_that_do_not_pay_together_are_all_rolled_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Net(SlowNorm)
    bench, taken = make_bench(model), [0]
    seconds, first = bench.seconds, 2 * (2 + QUICK["pairs"])

    def tired(dress: Callable[[], object]) -> float:
        """Run as ever, until the kinds are done and the whole is measured."""
        taken[0] += 1
        time_taken = seconds(dress)
        worn = any("forward" in vars(each) for each in model.modules())
        return time_taken * (100 if worn and taken[0] > first else 1)

    monkeypatch.setattr(bench, "seconds", tired)
    options = FusedBackwardOptions(providers=(Offers(SlowNorm, quick),), **QUICK)
    result = Trial(bench, options, Ranks()).run()
    assert result.kept == ()
    assert [row.verdict for row in result.rows] == ["rolled back", "rolled back"]
    assert result.rows[0].reason == "together the kept changes are not faster"


def test_one_that_fails_in_the_last_check_is_rolled_back_and_the_others_stay() -> None:
    model: Any = Net()

    def unlucky(self: nn.LayerNorm, x: Tensor) -> Tensor:
        if self is model.blocks[0].norm:
            raise RuntimeError("out of registers")
        return quick(self, x)

    result = run_trial(model, [Offers(nn.LayerNorm, named(unlucky))], mode="force")
    assert [each.layer for each in result.kept] == ["blocks.1.norm"]
    assert reason_of(result, "rolled back") == "the step raised RuntimeError: out of registers"


def test_one_that_fails_while_it_is_measured_has_no_times() -> None:
    left = [10]

    def tiring(self: nn.LayerNorm, x: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("out of registers")
        return quick(self, x)

    result = run_trial(Net(SlowNorm), [Offers(SlowNorm, named(tiring))])
    (row,) = result.rows
    assert (row.verdict, row.reason) == (
        "rolled back",
        "the step raised RuntimeError: out of registers",
    )
    assert math.inf not in row.cells()


def test_without_a_finite_course_nothing_is_kept() -> None:
    def cliff(model: nn.Module, batch: Any) -> Tensor:
        loss = loss_of(model, batch)
        return loss if loss.detach() > start - 1e-5 else loss * float("nan")

    model, batch = Net(), make_batch()
    start = float(loss_of(model, batch).detach())
    result = run_trial(model, [Offers(nn.LayerNorm, quick)], batch, loss=cliff, mode="force")
    assert result.kept == ()
    reasons = {row.reason for row in result.rows}
    assert reasons == {"the stock course is not finite, so that there is no measure"}


def test_the_table_has_a_cell_for_each_column() -> None:
    result = run_trial(Net(SlowNorm), [Offers(SlowNorm, quick)])
    table = trial_table(result.rows, 7)
    assert (table.name, table.step) == ("trials", 7)
    assert all(len(row) == len(table.columns) for row in table.rows)
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert first["layer"] == "blocks.0.norm and 1 more"
    assert first["verdict"] == "kept"
    assert isinstance(first["before (ms)"], float)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "always"}, "mode must be one of 'auto', 'advise', 'force'"),
        ({"min_gain": 1.5}, r"min_gain lie in \[0, 1\)"),
        ({"after_steps": -1}, "after_steps must not be negative"),
        ({"pairs": 0}, "pairs must be a positive"),
        ({"pairs": 7}, "pairs must be at least 8: .* are no 99 % interval; got 7"),
        ({"providers": ("tritn",)}, "providers must be one of .*'torch', 'liger'; got 'tritn'"),
        ({"providers": (object(),)}, "a provider has a name and a method propose"),
        ({"providers": ("torch", "torch")}, "two providers have one name"),
        ({"providers": "torch"}, r"providers is a sequence; got 'torch': write \('torch',\)"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        FusedBackwardOptions(**options)
