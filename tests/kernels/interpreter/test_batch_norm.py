"""BatchNorm with residual and ReLU, interpreted, against float64 autograd and the stock one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused import batch_norm_add_relu, batch_norm_relu, swap
from gradwatch.kernels.batch_norm import batch_norm
from tests.kernels.interpreter.layouts import (
    FORMATS,
    IMAGE_GRADIENTS,
    IMAGES,
    IMAGES_AND_GRADIENTS,
    in_formats,
)

Check = Callable[..., None]
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


class Case(NamedTuple):
    """One call: shape, what goes into it, dtypes."""

    shape: tuple[int, ...]
    training: bool = True
    residual: bool = False
    relu: bool = True
    affine: bool = True
    x: torch.dtype = FP32
    weight: torch.dtype = FP32


CASES = [
    Case((4, 9, 9, 9)),
    Case((4, 9, 9, 9), residual=True),
    Case((9, 3, 16, 16), relu=False, affine=False),
    Case((4, 9, 9, 9), training=False),
    Case((3, 10, 5, 7), training=False, residual=True),
    Case((2, 300, 1, 1), residual=True),
    Case((1, 7, 50, 50), residual=True),
    Case((1, 6, 3, 1)),
    Case((6, 7, 8, 8), residual=True, x=BF16),
    Case((6, 7, 8, 8), x=BF16, weight=BF16),
    Case((6, 7, 8, 8), x=FP16, residual=True, weight=FP16),
]


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreting costs by the program and the operation, not by the element."""
    monkeypatch.setattr("gradwatch.kernels._channels.resident_programs", lambda *_: 8)


def tensors(case: Case, layout: Callable[[Tensor], Tensor]) -> list[Tensor]:
    channels = case.shape[1]
    x = layout(torch.randn(case.shape).mul(2).add(1).to(case.x))
    affine = [torch.randn(channels).to(case.weight) for _ in range(2 * case.affine)]
    residual = [layout(torch.randn(case.shape).to(case.x))] if case.residual else []
    return [t.detach().requires_grad_() for t in (x, *residual, *affine)]


def outcome(
    case: Case, inputs: list[Tensor], dy: Tensor, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Return y, gradients and running statistics; the stock way, if in another dtype."""
    stock = dtype is not None
    leaves = [t.detach().to(dtype or t.dtype).requires_grad_() for t in inputs]
    x, *rest = leaves
    residual = rest.pop(0) if case.residual else None
    channels = case.shape[1]
    running = [torch.linspace(-1, 1, channels), torch.linspace(0.5, 2, channels)]
    running = [s.to(dtype or s.dtype) for s in running]
    w, b = [*rest, None, None][:2]
    if stock:
        y = F.batch_norm(x, running[0], running[1], w, b, case.training, 0.3)
        y = y if residual is None else y + residual
        y = F.relu(y) if case.relu else y
    else:
        y = batch_norm(
            x, running[0], running[1], w, b, residual=residual,
            training=case.training, momentum=0.3, relu=case.relu,
        )  # fmt: skip
    grads = torch.autograd.grad(y, leaves, dy.to(y.dtype))
    return [y.detach(), *grads, *running]


@pytest.mark.parametrize(("case", "layout"), in_formats(CASES), ids=str)
def test_the_error_is_at_most_twice_the_stock_operations(
    case: Case, layout: str, no_worse_than_stock: Check, rounded_once: Check
) -> None:
    inputs = tensors(case, FORMATS[layout])
    dy = FORMATS[layout](torch.randn(case.shape).to(case.x))
    ours = outcome(case, inputs, dy)
    exact, theirs = (outcome(case, inputs, dy, dtype) for dtype in (torch.float64, FP32))
    assert [t.dtype for t in ours] == [case.x, *(t.dtype for t in inputs), FP32, FP32]
    assert ours[0].stride() == ours[1].stride() == dy.stride()
    for got, reference, true in zip(ours, theirs, exact, strict=True):
        no_worse_than_stock(got, reference.to(got.dtype), true)
        if got.dtype != FP32 and got.numel() > 1000:
            rounded_once(got, true)


@pytest.mark.parametrize(("of", "grad"), IMAGES_AND_GRADIENTS)
def test_every_layout_gives_the_bits_of_the_dense_one(of: str, grad: str) -> None:
    case = Case((2, 3, 4, 6), residual=True)
    dense = tensors(case, FORMATS["channels last" if "last" in of else "contiguous"])
    dy = IMAGE_GRADIENTS[grad](torch.randn(case.shape))
    strided = [IMAGES[of](t.detach()) if t.dim() == 4 else t for t in dense]
    results = [outcome(case, inputs, dy) for inputs in (strided, dense)]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert results[0][0].stride() == results[1][0].stride()


def test_a_large_mean_costs_no_more_digits_than_it_costs_the_stock_operation(
    no_worse_than_stock: Check,
) -> None:
    case = Case((8, 9, 12, 12), relu=False)
    inputs = [t.detach() for t in tensors(case, FORMATS["contiguous"])]
    inputs[0] += 1000.0
    inputs[0][0, :, 0, 0] = -1000.0
    dy = torch.randn(case.shape)
    exact, theirs = (outcome(case, inputs, dy, dtype) for dtype in (torch.float64, FP32))
    for got, reference, true in zip(outcome(case, inputs, dy), theirs, exact, strict=True):
        no_worse_than_stock(got, reference, true)


MODES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "cumulative": {"momentum": None},
    "without parameters": {"affine": False},
    "without running statistics": {"track_running_stats": False},
    "another momentum and epsilon": {"momentum": 0.01, "eps": 0.1},
}


@pytest.mark.parametrize("mode", MODES)
def test_after_steps_in_both_modes_buffers_and_outputs_are_those_of_the_stock_module(
    mode: str,
) -> None:
    stock, fused = nn.BatchNorm2d(2, **MODES[mode]), nn.BatchNorm2d(2, **MODES[mode])
    swap(fused)
    for step, training in enumerate([True, True, False, True, False]):
        x = torch.randn(3, 2, 4, 4) * (step + 1) + step
        grads = []
        for module in (stock.train(training), fused.train(training)):
            leaf = x.clone().requires_grad_()
            y = module(leaf)
            grads.append([y.detach(), *torch.autograd.grad(y.square().sum(), leaf)])
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-5, atol=1e-4)
    ours, theirs = fused.state_dict(), stock.state_dict()
    assert list(ours) == list(theirs)
    torch.testing.assert_close(list(ours.values()), list(theirs.values()), rtol=1e-6, atol=1e-6)
    if "num_batches_tracked" in ours:
        assert ours["num_batches_tracked"] == 3


def test_a_frozen_layer_leaves_its_buffers_alone_and_has_a_constant_gradient() -> None:
    module = nn.BatchNorm2d(4).requires_grad_(requires_grad=False).eval()
    before = [b.clone() for b in module.buffers()]
    swap(module)
    x = torch.randn(2, 4, 3, 3, requires_grad=True)
    module(x).backward(torch.ones(2, 4, 3, 3))
    assert all(torch.equal(a, b) for a, b in zip(module.buffers(), before, strict=True))
    torch.testing.assert_close(x.grad, torch.full((2, 4, 3, 3), (1 + 1e-5) ** -0.5))


def test_one_value_a_channel_raises_in_the_words_of_torch() -> None:
    x, stock = torch.randn(1, 3, 1, 1), nn.BatchNorm2d(3)
    fused = nn.BatchNorm2d(3)
    swap(fused)
    messages = []
    for call in (stock, fused, lambda x: batch_norm_relu(x, training=True)):
        with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
            call(x)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1
    assert fused.num_batches_tracked == stock.num_batches_tracked


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (0, 2), (1, 3), (0, 1)])
def test_only_what_needs_a_gradient_gets_one(wanted: tuple[int, ...]) -> None:
    case = Case((2, 5, 4, 4), residual=True)
    data, dy = tensors(case, FORMATS["contiguous"]), torch.randn(case.shape)
    grads: list[list[Any]] = []
    for which in (range(4), wanted):
        x, r, w, b = (t.detach().requires_grad_(i in which) for i, t in enumerate(data))
        batch_norm_add_relu(x, r, None, None, w, b, training=True).backward(dy)
        grads.append([t.grad for t in (x, r, w, b)])
    assert [i for i, grad in enumerate(grads[1]) if grad is not None] == list(wanted)
    assert all(torch.equal(grads[0][i], grads[1][i]) for i in wanted)


def test_relu_lets_nan_through_and_stops_at_zero_as_the_stock_one() -> None:
    x = torch.tensor([-1.0, 0.0, 2.0, float("nan")]).view(1, 1, 1, 4)
    mean, var, r, dy = torch.zeros(1), torch.ones(1), torch.zeros_like(x), torch.ones_like(x)
    results = []
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda x: batch_norm_add_relu(x, r, mean, var),
        lambda x: batch_norm_relu(x, mean, var),
        lambda x: F.relu(F.batch_norm(x, mean, var)),
    ]
    for call in calls:
        leaf = x.clone().requires_grad_()
        y = call(leaf)
        y.backward(dy)
        results.append([y.detach(), leaf.grad])
    for ours in results[:2]:
        torch.testing.assert_close(ours, results[2], equal_nan=True)


def test_an_empty_batch_runs_no_kernel_and_answers_as_the_stock_operation(ledger: Any) -> None:
    x, w = torch.randn(0, 3, 4, 4, requires_grad=True), torch.ones(3, requires_grad=True)
    mean, var = torch.zeros(3), torch.ones(3)
    y = batch_norm_add_relu(x, x.detach(), mean, var, w)
    dx, dw = torch.autograd.grad(y.sum(), (x, w))
    assert (y.shape, dx.shape) == (x.shape, x.shape)
    assert torch.equal(dw, torch.zeros(3))
    assert not ledger.loaded


@pytest.mark.parametrize("layout", FORMATS)
def test_the_same_input_gives_the_same_bits_and_stays_as_it_was(layout: str) -> None:
    case = Case((4, 5, 8, 8), residual=True, x=BF16)
    inputs = tensors(case, FORMATS[layout])
    before = [t.detach().clone() for t in inputs]
    dy = torch.randn(case.shape).to(BF16)
    first, second = (outcome(case, inputs, dy) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize(
    ("layout", "x"),
    [("contiguous", FP32), ("contiguous", BF16), ("channels last", BF16)],
)
@pytest.mark.parametrize(
    ("residual", "forward_passes", "backward_passes"), [(False, 3, 5), (True, 4, 6)]
)
def test_backward_takes_five_passes_or_six_and_a_mask_of_one_bit(
    residual: bool, forward_passes: int, backward_passes: int, x: torch.dtype, layout: str,
    ledger: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("gradwatch.kernels._channels._TILE", 32 * 1024)
    case = Case((16, 8, 64, 64), residual=residual, x=x)
    inputs = tensors(case, FORMATS[layout])
    leaf, *rest = inputs
    y = batch_norm(
        leaf, None, None, *rest[residual:], residual=rest[0] if residual else None,
        training=True, relu=True,
    )  # fmt: skip
    elements, mask = y.numel(), y.numel() / 8 * residual
    floor = elements * x.itemsize * forward_passes + mask
    assert floor <= ledger.bytes <= 1.05 * floor
    forward = ledger.bytes
    y.backward(torch.ones_like(y))
    floor = elements * x.itemsize * backward_passes + mask
    assert floor <= ledger.bytes - forward <= 1.05 * floor


def test_a_residual_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"residual must be like x, \(2, 3, 4, 4\)"):
        batch_norm_add_relu(torch.randn(2, 3, 4, 4), torch.randn(3, 4, 4), training=True)


def test_statistics_must_come_from_somewhere() -> None:
    with pytest.raises(ValueError, match="outside training it takes running_mean"):
        batch_norm_relu(torch.randn(2, 3, 4, 4))
    with pytest.raises(ValueError, match="give running_mean and running_var, or neither"):
        batch_norm_relu(torch.randn(2, 3, 4, 4), torch.zeros(3), training=True)
