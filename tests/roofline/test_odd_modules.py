"""Modules that are no plain stack of layers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.roofline import RooflineOptions, profile

ONCE = RooflineOptions(warmup_steps=0, timed_steps=1, traced_steps=1)


class Shared(nn.Module):
    """One layer called twice, its outputs in containers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"once": [self.fc(x)], "again": (self.fc(x), None), "number": 3}


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        y += 1
        out: Tensor = self.act(y)
        return out


@pytest.mark.parametrize(
    ("module", "layer", "called"),
    [
        (Shared(), "fc", 2),
        (InPlace(), "fc", 1),
        (nn.Sequential(nn.LazyLinear(4)), "0", 1),
        (nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)), "1", 1),
    ],
    ids=["shared, in containers", "in place", "lazy", "behind a frozen one"],
)
def test_odd_modules_are_counted_as_often_as_they_run(
    module: nn.Module, layer: str, called: int
) -> None:
    x = torch.randn(8, 4, requires_grad=True)
    own = next(own for own in profile(module, x, options=ONCE).layers if own.layer == layer)
    # Three products of 8 × 4 × 4 and the sums of the bias.
    once = 3 * 2 * 8 * 4 * 4 + 8 * 4
    assert own.flops >= called * once
    assert own.flops < (called + 1) * once


# Scripting is on its way out, and still in use.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_sparse_gradients_and_scripted_modules_are_no_obstacle() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), torch.jit.script(nn.Linear(4, 4)))
    told = profile(model, torch.arange(5), options=ONCE)
    assert told.notes == ("1 module(s) not looked into: scripted",)
    assert {"0", "<root>"} <= {own.layer for own in told.layers}


class Ragged(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        jagged = torch.nested.as_nested_tensor([x[:1], x[1:]], layout=torch.jagged)
        out: Tensor = super().forward(jagged).values()
        return out


def test_what_cannot_be_counted_is_said_and_nothing_is_judged_by_halves() -> None:
    told = profile(Ragged(4, 4), torch.ones(3, 4), options=ONCE)
    assert told.layers == ()
    assert "an operation could not be counted, so no layer is judged" in told.notes[0]
    assert told.phases["forward"] > 0


class Distils(nn.Module):
    """A teacher in inference mode, where torch takes no operation apart."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            wanted = self.teacher(x)
        return nn.functional.mse_loss(self.student(x), wanted.clone())


def test_a_product_in_inference_mode_costs_what_it_costs_elsewhere() -> None:
    told = {own.layer: own for own in profile(Distils(), torch.ones(8, 4), options=ONCE).layers}
    assert told["teacher"].flops == 2 * 8 * 4 * 4


# Dynamo itself asks for the gradient of a tensor that keeps none.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_function_runs_as_it_is_and_no_layer_is_judged() -> None:
    class Compiles(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return double(super().forward(x))

    double = torch.compile(lambda value: value * 2, backend="aot_eager")
    told = profile(Compiles(8, 8), torch.ones(2, 8), options=ONCE)
    assert told.layers == ()
    assert "something in the step is compiled" in told.notes[0]
    assert told.kernels
