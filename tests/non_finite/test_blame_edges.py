"""What is a fault and what is none: constants, masks, inputs, weights, swallowed values."""

from collections import UserDict
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwatch.findings import INPUT, LOSS, OPTIMIZER, ROOT
from gradwatch.non_finite.blame import NOT_REPRODUCIBLE, Blame
from tests.modules import Apply

Examine = Callable[..., Blame]
INF = float("inf")


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def around(function: Callable[[Tensor], Tensor]) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), Apply(function), nn.Linear(4, 3))


def squares(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda x: cast("Tensor", model(x)).pow(2).mean()


@pytest.mark.parametrize("value", [float("nan"), INF])
@pytest.mark.parametrize(
    ("build", "path"),
    [
        (lambda x: (x, torch.zeros(5, 3)), "batch[0]"),
        (lambda x: {"x": x, "y": [torch.zeros(5, 3)]}, "batch['x']"),
        (lambda x: UserDict({"x": x}), "batch['x']"),
    ],
    ids=["tuple", "dict", "UserDict"],
)
def test_a_bad_sample_is_the_input_and_never_a_layer(
    examine: Examine, value: float, build: Callable[[Tensor], Any], path: str
) -> None:
    model, x = make_model(), torch.randn(5, 4)
    x[3, 1] = value
    run = lambda batch: model(batch[0] if isinstance(batch, tuple) else batch["x"]).pow(2).mean()  # noqa: E731
    blame = examine(model, run, build(x))
    assert (blame.place, blame.batch_path, blame.samples) == (INPUT, path, (3,))


def test_an_input_that_was_overwritten_in_part_is_still_the_input(examine: Examine) -> None:
    model, x = make_model(), torch.randn(5, 4)
    x[3, 1] = float("nan")

    def run(batch: Tensor) -> Tensor:
        batch[:, 0] = 0
        return squares(model)(batch)

    assert examine(model, run, x).place == INPUT


def test_labels_that_are_nan_and_masked_too_late_are_the_input_with_a_hint(
    examine: Examine,
) -> None:
    model, y = make_model(), torch.randn(5, 3)
    y[2] = float("nan")

    def run(batch: tuple[Tensor, Tensor]) -> Tensor:
        squared = (model(batch[0]) - batch[1]) ** 2
        return torch.where(batch[1].isnan(), 0.0, squared).mean()

    blame = examine(model, run, (torch.randn(5, 4), y))
    assert (blame.place, blame.batch_path, blame.samples) == (INPUT, "batch[1]", (2,))
    assert "replace them before the first operation" in blame.hint


def test_labels_that_are_nan_and_left_out_in_time_are_no_fault(examine: Examine) -> None:
    model, y = make_model(), torch.randn(5, 3)
    y[2] = float("nan")
    run = lambda batch: (model(batch[0]) - batch[1].nan_to_num()).pow(2).mean()  # noqa: E731
    assert examine(model, run, (torch.randn(5, 4), y), healthy=True).kind == ""


def test_a_weight_that_was_bad_before_the_step_is_the_optimizers(examine: Examine) -> None:
    model = make_model()
    with torch.no_grad():
        model.get_parameter("2.weight")[1, 2] = float("nan")
    blame = examine(model, squares(model), torch.randn(5, 4))
    assert (blame.place, blame.evidence["parameter"]) == (OPTIMIZER, "2.weight")


def test_a_bad_buffer_is_the_layer_that_owns_it(examine: Examine) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval()
    buffer = model.get_buffer("1.running_var")
    buffer[2] = float("nan")
    blame = examine(model, squares(model), torch.randn(5, 4))
    assert (blame.place, blame.evidence["buffer"]) == ("1", "1.running_var")


def test_a_nan_that_relu_swallows_is_no_fault(examine: Examine) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Apply(torch.sqrt), nn.Linear(4, 3))
    blame = examine(model, squares(model), torch.randn(5, 4), healthy=True)
    assert (blame.kind, blame.operation, blame.verdict) == ("", "", NOT_REPRODUCIBLE)


def attend_causally(x: Tensor) -> Tensor:
    hidden = torch.ones(len(x), len(x)).triu(1).bool()
    return torch.softmax((x @ x.T).masked_fill(hidden, -INF), -1) @ x


def test_a_causal_mask_full_of_infinities_is_no_fault(examine: Examine) -> None:
    model = around(attend_causally)
    blame = examine(model, squares(model), torch.randn(5, 4), healthy=True)
    assert blame.kind == ""


def test_beside_a_harmless_mask_the_real_fault_is_found(examine: Examine) -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), Apply(attend_causally), nn.Linear(4, 4), Apply(torch.log), nn.Linear(4, 1)
    )
    blame = examine(model, squares(model), torch.randn(5, 4))
    assert (blame.place, blame.operation) == ("3", "aten::log")


@pytest.mark.parametrize(
    "mask",
    [
        lambda x: x.masked_fill(torch.ones(4).bool(), -INF),
        lambda x: torch.where(torch.ones(4).bool(), torch.tensor(-INF), x),
        lambda x: x + torch.full((4,), -INF),
        lambda x: x + torch.zeros(4).fill_(-INF),
    ],
    ids=["masked_fill", "where", "full", "fill_"],
)
def test_a_constant_infinity_leaves_the_blame_to_the_operation_that_made_nan_of_it(
    examine: Examine, mask: Callable[[Tensor], Tensor]
) -> None:
    model = around(lambda x: torch.softmax(mask(x), -1))
    blame = examine(model, squares(model), torch.randn(5, 4))
    assert (blame.kind, blame.operation) == ("NaN", "aten::_softmax")
    assert "constant_inf" in blame.evidence


def test_a_mask_of_infinities_in_the_batch_is_a_constant_too(examine: Examine) -> None:
    model = nn.Linear(4, 4)
    run = lambda batch: torch.softmax(model(batch["x"]) + batch["mask"], -1).pow(2).sum()  # noqa: E731
    blame = examine(model, run, {"x": torch.randn(2, 4), "mask": torch.full((2, 4), -INF)})
    assert (blame.place, blame.operation) == (LOSS, "aten::_softmax")
    assert blame.evidence["constant_inf"] == "batch batch['mask']"


def test_a_label_behind_a_mask_makes_the_loss_infinite(examine: Examine) -> None:
    model = nn.Linear(4, 4)
    hidden, labels = torch.tensor([True, False, False, False]), torch.zeros(5).long()

    def run(x: Tensor) -> Tensor:
        return functional.cross_entropy(model(x).masked_fill(hidden, -INF), labels)

    blame = examine(model, run, torch.randn(5, 4))
    assert (blame.place, blame.kind, blame.operation) == (LOSS, "Inf", "aten::nll_loss_forward")


def test_a_loss_that_is_a_module_of_the_model_is_the_loss(examine: Examine) -> None:
    model = nn.ModuleDict({"net": nn.Linear(4, 3), "criterion": nn.CrossEntropyLoss()})
    labels = torch.full((5,), -100)
    run = lambda x: model["criterion"](model["net"](x) / 2, labels)  # noqa: E731
    assert examine(model, run, torch.randn(5, 4)).place == LOSS


def test_arithmetic_before_a_loss_module_is_the_loss_too(examine: Examine) -> None:
    model = nn.ModuleDict({"net": nn.Linear(4, 3), "criterion": nn.MSELoss()})
    run = lambda x: model["criterion"](model["net"](x).log(), torch.zeros(5, 3))  # noqa: E731
    blame = examine(model, run, torch.randn(5, 4))
    assert (blame.place, blame.operation) == (LOSS, "aten::log")


def test_a_model_that_computes_its_own_loss_can_have_a_faulty_loss(examine: Examine) -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return functional.cross_entropy(self.net(x), labels)

    model = WithLoss()
    batch = (torch.randn(5, 4), torch.full((5,), -100))
    assert examine(model, lambda b: model(*b), batch).place == LOSS


def test_what_happens_to_the_batch_before_the_model_is_the_root(examine: Examine) -> None:
    model = make_model()
    blame = examine(model, lambda x: model(x.log()).pow(2).mean(), torch.randn(5, 4))
    assert (blame.place, blame.operation) == (ROOT, "aten::log")


def test_a_function_between_two_models_is_told_with_its_neighbours(examine: Examine) -> None:
    model = nn.ModuleDict({"enc": nn.Linear(4, 4), "dec": nn.Linear(4, 4)})
    run = lambda x: model["dec"](model["enc"](x).log()).pow(2).mean()  # noqa: E731
    blame = examine(model, run, torch.randn(5, 4))
    assert (blame.place, blame.after, blame.before) == (ROOT, "enc", "dec")


def test_a_loss_whose_derivative_is_infinite_is_the_loss(examine: Examine) -> None:
    model = make_model()
    run = lambda x: (model(x) - model(x).detach()).norm(dim=1).pow(0.5).sum()  # noqa: E731
    blame = examine(model, run, torch.randn(5, 4))
    assert (blame.place, blame.phase) == (LOSS, "backward")
