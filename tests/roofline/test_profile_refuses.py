"""What a profile refuses, what it puts back, and where it runs nevertheless."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.errors import ConfigurationError
from gradwatch.roofline import Ceilings, RooflineOptions, profile

ONCE = RooflineOptions(warmup_steps=0, timed_steps=1, traced_steps=1)
ROWS = torch.ones(4, 8)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda _: 1.0, "got 1.0"),
        (lambda _: None, "got None"),
        (lambda out: out, r"got \(4, 2\) torch.float32"),
        (lambda out: torch.complex(out, out).sum(), r"got \(\) torch.complex64"),
    ],
    ids=["a float", "nothing", "several", "complex"],
)
def test_a_loss_that_is_no_number_is_refused(loss: Callable[[Tensor], Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"must be one real number.*{told}"):
        profile(nn.Linear(8, 2), ROWS, loss=loss, options=ONCE)


def test_what_is_no_module_is_refused() -> None:
    function: Any = torch.sin
    with pytest.raises(ConfigurationError, match=r"takes a torch.nn.Module; got builtin"):
        profile(function, ROWS)


def test_what_is_no_options_is_refused() -> None:
    five: Any = 5
    with pytest.raises(ConfigurationError, match=r"RooflineOptions\(...\); got 5"):
        profile(nn.Linear(8, 2), ROWS, options=five)


def test_half_a_step_is_refused() -> None:
    half: Any = 2.5
    with pytest.raises(ConfigurationError, match="timed_steps must be a whole number"):
        RooflineOptions(timed_steps=half)


def test_a_module_that_is_nowhere_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="meta device, where nothing runs"):
        profile(nn.Linear(8, 2, device="meta"), ROWS)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_gradients_are_recorded_where_the_caller_has_switched_them_off(
    context: Callable[[], AbstractContextManager[None]],
) -> None:
    model = nn.Linear(8, 2)
    with context():
        told = profile(model, ROWS, options=ONCE)
    assert told.layers[0].backward_seconds > 0


def test_an_input_keeps_the_gradient_it_had() -> None:
    x, before = torch.ones(4, 8, requires_grad=True), torch.full((4, 8), 3.0)
    x.grad = before
    profile(nn.Linear(8, 2), {"input": x}, options=ONCE)
    assert x.grad is before
    assert torch.equal(before, torch.full((4, 8), 3.0))


def test_products_whose_ceiling_is_unknown_are_named() -> None:
    machine = Ceilings(
        device="toy",
        copy_bytes_per_second=1e10,
        matrix_flops_per_second={"float32": 1e11},
        launch_seconds=1e-6,
    )
    model, rows = nn.Linear(8, 2).double(), ROWS.double()
    (note,) = profile(model, rows, options=ONCE, ceilings=machine).notes
    assert "float64 are held against another type's rate" in note
