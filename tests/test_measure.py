"""What an optimizer's step is measured as: per parameter, per layer, before and after."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradwatch.boarding import total_norm, united_norms
from gradwatch.layers import LayerMap
from gradwatch.measure import Measured, OptimizerView
from gradwatch.transfer import Transfer


class Odd(nn.Module):
    """Sparse, complex, half, frozen and never used parameters side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4, sparse=True)
        self.linear = nn.Linear(4, 3)
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.narrow = nn.Linear(3, 2).to(torch.bfloat16)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = (self.linear(self.embed(x)) * self.phase).real
        out: Tensor = self.narrow(h.to(torch.bfloat16)).float()
        return out


def step(model: nn.Module, *, size: float = 1.0) -> None:
    model.zero_grad()
    loss = model(torch.tensor([[1, 1, 3], [5, 0, 1]])).pow(2).mean()
    (loss * size).backward()


def read(view: OptimizerView, divide_by: float = 1.0) -> Measured:
    transfer = Transfer()
    view.load(transfer, weights=True)
    return view.unload(transfer.fetch(), divide_by, None)


def make_view(model: nn.Module) -> OptimizerView:
    layers = LayerMap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return OptimizerView(optimizer, layers, layers.names)


def slow_norm(tensor: Tensor | None) -> float:
    if tensor is None:
        return math.nan
    dense = tensor.detach().to_dense()
    wide = dense.to(torch.complex128 if dense.is_complex() else torch.float64)
    return float(wide.abs().square().sum().sqrt())


def test_every_parameter_is_measured_as_a_slow_reference_says() -> None:
    model = Odd()
    view = make_view(model)
    for _ in range(3):  # exact norms at first, fast ones later
        step(model)
        measured = read(view)
        slow = [slow_norm(parameter.grad) for parameter in model.parameters()]
        assert measured.parameters.grad_norm == pytest.approx(slow, rel=1e-5, nan_ok=True)
        weights = [
            slow_norm(parameter) if parameter.grad is not None else math.nan
            for parameter in model.parameters()
        ]
        assert measured.parameters.weight_norm == pytest.approx(weights, rel=1e-5, nan_ok=True)


def test_layers_unite_their_parameters_and_keep_their_states_apart() -> None:
    model = Odd()
    step(model)
    flow = read(make_view(model)).flow
    by_name = dict(zip(flow.layers, flow.grad_norm, strict=True))
    linear = math.hypot(slow_norm(model.linear.weight.grad), slow_norm(model.linear.bias.grad))
    assert by_name["linear"] == pytest.approx(linear, rel=1e-5)
    assert math.isnan(by_name["frozen"])
    assert math.isnan(by_name["unused"])
    assert dict(zip(flow.layers, flow.frozen, strict=True)) == {
        name: name == "frozen" for name in flow.layers
    }
    has = dict(zip(flow.layers, flow.has_grad, strict=True))
    assert [name for name, own in has.items() if not own] == ["frozen", "unused"]


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_a_gradient_out_of_the_range_of_squares_is_measured_right_from_the_first_step(
    size: float,
) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    view = make_view(model)
    for _ in range(3):
        model.zero_grad()
        (model(torch.ones(3, 4)).sum() * size).backward()
        slow = [slow_norm(parameter.grad) for parameter in model.parameters()]
        measured = read(view)
        assert measured.parameters.grad_norm == pytest.approx(slow, rel=1e-5)
        assert measured.suspects == ()


def test_a_sudden_tiny_gradient_is_unknown_once_and_never_called_zero() -> None:
    model = nn.Linear(4, 2)
    view = make_view(model)
    norms = []
    for size in (1.0, 1.0, 1e-30, 1e-30):
        model.zero_grad()
        (model(torch.ones(3, 4)).sum() * size).backward()
        norms.append(read(view).parameters.grad_norm[0])
    assert math.isnan(norms[2])
    assert norms[3] == pytest.approx(slow_norm(model.weight.grad), rel=1e-5)


def test_a_sudden_huge_gradient_is_told_from_an_infinite_one() -> None:
    model = nn.Linear(4, 2)
    view = make_view(model)
    for size in (1.0, 1.0, 1e25):
        model.zero_grad()
        (model(torch.ones(3, 4)).sum() * size).backward()
        measured = read(view)
    assert measured.suspects == ()
    assert measured.parameters.grad_norm[0] == pytest.approx(slow_norm(model.weight.grad), rel=1e-5)
    model.bias.grad = torch.tensor([math.inf, 0.0])
    again = read(view)
    assert [view.names[place] for place in again.suspects] == ["bias"]
    assert again.parameters.grad_norm[1] == math.inf


SPOILERS: dict[str, Callable[[Any], None]] = {
    "nan": lambda grad: grad.view(-1)[0].fill_(math.nan),
    "inf": lambda grad: grad.view(-1)[0].fill_(math.inf),
}


@pytest.mark.parametrize("kind", SPOILERS)
def test_a_bad_gradient_is_inf_and_named(kind: str) -> None:
    model = Odd()
    view = make_view(model)
    for _ in range(2):
        step(model)
        read(view)
    step(model)
    SPOILERS[kind](model.linear.weight.grad)
    measured = read(view)
    assert [view.names[place] for place in measured.suspects] == ["linear.weight"]
    assert measured.flow.grad_norm[measured.flow.layers.index("linear")] == math.inf


def test_scaled_gradients_are_divided_on_the_host() -> None:
    model = nn.Linear(4, 2)
    view = make_view(model)
    (model(torch.ones(3, 4)).sum() * 1024.0).backward()
    slow = slow_norm(model.weight.grad) / 1024.0
    assert read(view, divide_by=1024.0).parameters.grad_norm[0] == pytest.approx(slow, rel=1e-6)


def test_a_view_knows_when_its_optimizer_holds_something_else() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layers = LayerMap(model)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    view = OptimizerView(optimizer, layers, layers.names)
    assert view.is_current(optimizer)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    assert not view.is_current(optimizer)
    assert OptimizerView(optimizer, layers, layers.names).layers == ("0", "1")


def test_the_update_is_measured_as_what_it_did_to_the_weights() -> None:
    model = nn.Linear(4, 2)
    layers = LayerMap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.3)
    view = OptimizerView(optimizer, layers, layers.names)
    model(torch.ones(3, 4)).sum().backward()
    measured = read(view)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    copies = view.copies()
    optimizer.step()
    groups = view.moved(copies)
    moved = np.concatenate([group.values.numpy() for group in groups]).astype(np.float64)
    now = list(model.parameters())
    whole = math.hypot(*(slow_norm(a - b) for a, b in zip(now, before, strict=True)))
    size = math.hypot(*(slow_norm(each) for each in before))
    ratio = view.update_ratio(moved, measured.parameters.has_grad, measured.flow.weight_norm)
    assert ratio == pytest.approx([whole / size], rel=1e-5)


def test_norms_unite_without_overflow_and_leave_unknown_ones_out() -> None:
    assert total_norm(np.array([3e200, 4e200])) == pytest.approx(5e200)
    assert total_norm(np.array([3.0, math.nan, 4.0])) == 5.0
    assert total_norm(np.array([math.nan])) == 0.0
    united = united_norms(np.array([3.0, 4.0, 1.0]), np.array([1, 1, 0]), 3)
    assert united.tolist() == [1.0, 5.0, 0.0]
