"""What is not worth a trial, or must not be touched, is left alone, with the reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.utils import parametrize

from gradwatch.fused import trial
from gradwatch.fused.bounds import Diagnosis
from gradwatch.roofline.verdicts import LayerVerdict, VerdictKind
from tests.fused.lab import (
    Net,
    Offers,
    SlowNorm,
    named,
    quick,
    reason_of,
    run_trial,
    verdicts,
)


def raising(self: nn.LayerNorm, x: Tensor) -> Tensor:
    raise RuntimeError("no kernel image is available")


def test_advice_tries_nothing() -> None:
    result = run_trial(Net(), [Offers(nn.LayerNorm, named(raising))], mode="advise")
    assert verdicts(result) == {"LayerNorm": "advised"}
    assert result.kept == ()


def test_small_inputs_are_left_alone() -> None:
    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], min_elements=1000)
    assert reason_of(result, "refused") == ("its inputs are small: 96 elements, under min_elements")


def verdict(layer: str, kind: VerdictKind) -> LayerVerdict:
    figures: dict[str, Any] = dict.fromkeys(LayerVerdict._fields, 0.0)
    told = {"layer": layer, "kind": kind, "gain_share": 0.125, "reason": f"{layer} is so"}
    return LayerVerdict(**figures | told)


def test_what_is_bound_by_arithmetic_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "blocks.0.norm": verdict("blocks.0.norm", "compute-bound"),
        "blocks.1.norm": verdict("blocks.1.norm", "bandwidth-bound"),
    }
    monkeypatch.setattr(trial, "diagnose", lambda *_: Diagnosis(verdicts=known))
    options = {"profile": True, "mode": "advise"}
    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], **options)
    assert [(row.layers, row.verdict, row.reason) for row in result.rows] == [
        (("blocks.0.norm",), "refused", "compute-bound: blocks.0.norm is so"),
        (("blocks.1.norm",), "advised",
         "can be tried with mode='auto', up to 12.5% of the step"),
    ]  # fmt: skip


def test_a_step_that_differentiates_its_gradients_is_refused() -> None:
    def penalised(model: nn.Module, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], loss=penalised, mode="force")
    assert reason_of(result, "refused") == (
        "the step differentiates its gradients (create_graph=True)"
    )


def test_one_that_imported_what_differentiates_is_found_out_as_well() -> None:
    def penalised(model: nn.Module, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_()
        (slope,) = grad(model(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], loss=penalised, mode="force")
    assert "create_graph=True" in reason_of(result, "refused")


def compiled(model: Any) -> None:
    model.blocks[0].norm.compile(backend="eager")
    model.blocks[1].norm.compile(backend="eager")


def parametrized(model: Any) -> None:
    for block in model.blocks:
        parametrize.register_parametrization(block.norm, "weight", nn.Softplus())


def replaced(model: Any) -> None:
    for block in model.blocks:
        block.norm.forward = quick.__get__(block.norm)


# Dynamo looks at what every input has.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (compiled, "it runs inside a compiled module"),
        (replaced, "its forward has been replaced already"),
    ],
)
def test_modules_that_must_be_left_alone_are_refused(
    prepare: Callable[[Net], None], reason: str
) -> None:
    model = Net()
    prepare(model)
    result = run_trial(model, [Offers(nn.LayerNorm, quick)], mode="force")
    assert result.kept == ()
    assert reason_of(result, "refused").startswith(reason)


def test_a_parametrized_module_is_not_the_class_it_was() -> None:
    model = Net()
    parametrized(model)
    assert run_trial(model, [Offers(nn.LayerNorm, quick)], mode="force").kept == ()


def test_what_is_not_tried_in_time_stays_as_it_is() -> None:
    result = run_trial(Net(SlowNorm), [Offers(SlowNorm, quick)], max_seconds=1e-9)
    assert reason_of(result, "not tried") == "the time for the trial was up"
