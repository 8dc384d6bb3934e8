"""Close calls: which side of the line a change falls on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.fused import trial
from gradwatch.fused.bounds import Diagnosis
from gradwatch.fused.observe import half_now
from gradwatch.fused.operation import Call, Operation
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.parity import Parity, check
from gradwatch.fused.trial import Again, Trial
from gradwatch.non_finite.rng import RandomState
from gradwatch.ranks import Ranks
from gradwatch.roofline.verdicts import LayerVerdict, VerdictKind
from tests.fused.lab import QUICK, Net, Offers, make_bench, quick, run_trial, verdicts
from tests.fused.nets import Chains


def verdict(layer: str, kind: VerdictKind) -> LayerVerdict:
    figures: dict[str, Any] = dict.fromkeys(LayerVerdict._fields, 0.0)
    return LayerVerdict(**figures | {"layer": layer, "kind": kind, "reason": f"{layer} is so"})


def test_a_chain_is_left_alone_only_where_all_of_it_is_bound_by_arithmetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds: dict[str, VerdictKind] = {
        "blocks.0": "bandwidth-bound", "blocks.0.linear": "compute-bound",
        "blocks.1": "compute-bound", "blocks.1.linear": "compute-bound",
    }  # fmt: skip
    known = {layer: verdict(layer, kind) for layer, kind in kinds.items()}
    monkeypatch.setattr(trial, "diagnose", lambda *_: Diagnosis(verdicts=known))
    result = run_trial(Net(), [Chains()], mode="advise", profile=True)
    told = {row.layers: row.verdict for row in result.rows if row.kind == "Linear → gelu"}
    assert told == {("blocks.0",): "advised", ("blocks.1",): "refused"}


@pytest.mark.parametrize(("least", "told"), [(96, "advised"), (97, "refused")])
def test_an_input_as_large_as_the_least_is_tried(least: int, told: str) -> None:
    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], mode="advise", min_elements=least)
    assert verdicts(result) == {"LayerNorm": told}


def test_advice_puts_nothing_on_that_another_run_kept() -> None:
    offers = Offers(nn.LayerNorm, quick)
    options = FusedBackwardOptions(providers=(offers,), **{**QUICK, "mode": "advise"})
    again = Again(frozenset({("blocks.0.norm", "LayerNorm", "lab")}), channels_last=False)
    result = Trial(make_bench(Net()), options, Ranks()).run(again)
    assert result.kept == ()
    assert verdicts(result) == {"LayerNorm": "advised"}


def judged(forward: Any, x: Tensor, gradient: Tensor | None = None) -> Parity:
    if gradient is None:
        gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    call = Call((x.requires_grad_(),), {}, (gradient,), RandomState.take(), half_now("cpu"))
    operation = Operation("LayerNorm", ("",), nn.LayerNorm.forward, forward)
    return check(operation, nn.LayerNorm(x.shape[-1]), call, 20.0)


def test_one_bad_element_among_many_is_found() -> None:
    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        y = quick(self, x)
        spot = torch.zeros_like(y)
        spot[7, 5] = 1e-5
        return y + spot

    reason = judged(forward, torch.randn(400, 96)).reason
    assert reason.startswith("its output is")
    assert "off at the worst element" in reason


def test_errors_are_held_to_twice_the_stock_ones() -> None:
    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        y = quick(self, x)
        signs = torch.ones_like(y)
        signs[::2] = -1.0
        return y * (1 + 4 * torch.finfo(y.dtype).eps * signs)

    reason = judged(forward, torch.randn(400, 96)).reason
    assert reason.startswith("its output is")


def transposed_wrongly(self: nn.LayerNorm, x: Tensor) -> Tensor:
    """Be right unless a gradient comes with its rows and columns laid out the other way."""
    y: Tensor = quick(self, x)
    if y.requires_grad:
        y.register_hook(lambda g: g * 1.5 if g.stride() == (1, g.shape[0]) else g)
    return y


def expanded_wrongly(self: nn.LayerNorm, x: Tensor) -> Tensor:
    """Be right unless a gradient comes as one row for all."""
    y: Tensor = quick(self, x)
    if y.requires_grad:
        y.register_hook(lambda g: g * 1.5 if g.stride()[0] == 0 else g)
    return y


@pytest.mark.parametrize(
    ("forward", "told"),
    [(transposed_wrongly, "comes transposed"), (expanded_wrongly, "expanded from one row")],
)
def test_a_fault_in_one_layout_of_the_gradient_is_told_with_it(forward: Any, told: str) -> None:
    assert told in judged(forward, torch.randn(40, 24)).reason


def without_bias(self: nn.LayerNorm, x: Tensor) -> Tensor:
    return nn.functional.layer_norm(
        x, self.normalized_shape, self.weight, self.bias.detach(), self.eps
    )


def test_a_gradient_that_the_stock_function_does_not_give_is_too_much() -> None:
    x, gradient = torch.randn(6, 8).requires_grad_(), torch.randn(6, 8)
    call = Call((x,), {}, (gradient,), RandomState.take(), half_now("cpu"))
    operation = Operation("LayerNorm", ("",), without_bias, quick)
    reason = check(operation, nn.LayerNorm(8), call, 20.0).reason
    assert reason == "it gives a gradient of bias, which the stock function does not"


def test_what_the_stock_layer_draws_cannot_be_compared_with_what_draws_nothing() -> None:
    call = Call((torch.randn(4, 8).requires_grad_(),), {}, (torch.randn(4, 8),),
                RandomState.take(), half_now("cpu"))  # fmt: skip
    operation = Operation("Dropout", ("",), nn.Dropout.forward, lambda _self, x: x * 1.0)
    reason = check(operation, nn.Dropout(0.5), call, 20.0).reason
    assert reason == "it draws random numbers: two forms of it cannot be compared"


@pytest.mark.parametrize("factor", [None, float("inf"), float("nan")])
def test_where_a_layout_has_no_measure_the_gradient_is_finite_at_least(
    factor: float | None,
) -> None:
    """A batch norm gives nothing back of a gradient that is alike in all rows: rounding only."""

    def forward(self: nn.BatchNorm1d, x: Tensor) -> Tensor:
        leaf = x * 1.0
        if factor is not None and leaf.requires_grad:
            leaf.register_hook(lambda g: g * factor if float(g.abs().max()) < 1e-5 else g)
        return nn.BatchNorm1d.forward(self, leaf)

    call = Call((torch.randn(64, 8).requires_grad_(),), {}, (torch.randn(64, 8),),
                RandomState.take(), half_now("cpu"))  # fmt: skip
    operation = Operation("BatchNorm1d", ("",), nn.BatchNorm1d.forward, forward)
    reason = check(operation, nn.BatchNorm1d(8), call, 20.0).reason
    assert ("there is no measure" in reason) is (factor is not None)
