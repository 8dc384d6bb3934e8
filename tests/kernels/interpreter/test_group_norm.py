"""GroupNorm and SiLU, interpreted, against float64 autograd and the stock operations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused import group_norm_silu, swap
from gradwatch.kernels.group_norm import group_norm
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
    """One call: shape, groups, SiLU, dtypes; under CUDA's autocast the output is float32."""

    shape: tuple[int, ...]
    groups: int
    silu: bool = True
    x: torch.dtype = FP32
    y: torch.dtype = FP32
    weight: torch.dtype | None = FP32


CASES = [
    Case((2, 30, 8, 8), 5),
    Case((2, 30, 8, 8), 5, silu=False),
    Case((3, 12, 7, 5), 12, silu=False, weight=None),
    Case((1, 300, 5, 5), 1),
    Case((1, 6, 60, 60), 2),
    Case((5, 24), 6, silu=False),
    Case((3, 8, 11), 4),
    Case((1, 6, 1, 2), 2),
    Case((2, 32, 9, 9), 8, x=BF16),
    Case((2, 32, 9, 9), 8, x=BF16, y=BF16),
    Case((2, 32, 9, 9), 8, x=BF16, y=BF16, weight=BF16, silu=False),
    Case((2, 32, 9, 9), 8, x=FP16, y=FP16, weight=FP16),
]


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreting costs by the program and the operation, not by the element."""
    monkeypatch.setattr("gradwatch.kernels.group_norm.resident_programs", lambda *_: 6)


def tensors(case: Case, layout: Callable[[Tensor], Tensor]) -> list[Tensor]:
    x = layout(torch.randn(case.shape).mul(2).add(1).to(case.x))
    dtype = case.weight
    affine = [] if dtype is None else [torch.randn(case.shape[1]).to(dtype) for _ in range(2)]
    return [t.detach().requires_grad_() for t in (x, *affine)]


def gradients(y: Tensor, inputs: list[Tensor], dy: Tensor) -> list[Tensor]:
    return [y.detach(), *torch.autograd.grad(y, inputs, dy.to(y.dtype))]


def fused(case: Case, inputs: list[Tensor], dy: Tensor) -> list[Tensor]:
    x, *affine = inputs
    w, b = [*affine, None, None][:2]
    y = group_norm(x, case.groups, w, b, silu=case.silu, dtype=case.y)
    return gradients(y, inputs, dy)


def stock(case: Case, inputs: list[Tensor], dy: Tensor, dtype: torch.dtype) -> list[Tensor]:
    x, *affine = copies = [t.detach().to(dtype).requires_grad_() for t in inputs]
    w, b = [*affine, None, None][:2]
    y = F.group_norm(x, case.groups, w, b)
    return gradients(F.silu(y) if case.silu else y, copies, dy)


@pytest.mark.parametrize(("case", "layout"), in_formats(CASES), ids=str)
def test_the_error_is_at_most_twice_the_stock_operations(
    case: Case, layout: str, no_worse_than_stock: Check, rounded_once: Check
) -> None:
    inputs = tensors(case, FORMATS[layout])
    dy = FORMATS[layout](torch.randn(case.shape).to(case.y))
    ours = fused(case, inputs, dy)
    exact, theirs = (stock(case, inputs, dy, dtype) for dtype in (torch.float64, FP32))
    assert [t.dtype for t in ours] == [case.y, *(t.dtype for t in inputs)]
    assert ours[0].stride() == ours[1].stride() == dy.stride()
    for got, reference, true in zip(ours, theirs, exact, strict=True):
        no_worse_than_stock(got, reference.to(got.dtype), true)
        if got.dtype != FP32 and got.numel() > 1000:
            rounded_once(got, true)


WHOLE = [
    (Case((2, 30, 8, 8), 5), "contiguous"),
    (Case((2, 12, 16, 16), 6, silu=False, weight=None), "contiguous"),
    (Case((3, 34, 7, 9), 2, x=BF16), "contiguous"),
    (Case((2, 32, 9, 9), 2, x=BF16, y=BF16, weight=BF16), "channels last"),
    (Case((1, 96, 9, 9), 2, silu=False), "channels last"),
]


@pytest.mark.parametrize(("case", "layout"), WHOLE, ids=str)
def test_groups_in_one_program_give_what_two_passes_give(
    case: Case, layout: str, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = tensors(case, FORMATS[layout])
    dy = FORMATS[layout](torch.randn(case.shape).to(case.y))
    one = fused(case, inputs, dy)
    assert {"whole_forward", "whole_backward"} <= ledger.stored.keys()
    monkeypatch.setattr("gradwatch.kernels.group_norm._WHOLE", ())
    two = fused(case, inputs, dy)
    assert {"forward", "backward"} <= ledger.stored.keys()
    for a, b in zip(one, two, strict=True):
        eps = torch.finfo(a.dtype).eps
        torch.testing.assert_close(a, b, rtol=8 * eps, atol=16 * torch.finfo(FP32).eps)


@pytest.mark.parametrize(("of", "grad"), IMAGES_AND_GRADIENTS)
def test_every_layout_gives_the_bits_of_the_dense_one(of: str, grad: str) -> None:
    case = Case((2, 6, 4, 5), 3)
    dense = tensors(case, FORMATS["channels last" if "last" in of else "contiguous"])
    dy = IMAGE_GRADIENTS[grad](torch.randn(case.shape))
    strided = [IMAGES[of](dense[0].detach()).requires_grad_(), *dense[1:]]
    results = [fused(case, inputs, dy) for inputs in (strided, dense)]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert results[0][0].stride() == results[1][0].stride()


@pytest.mark.parametrize("layout", FORMATS)
def test_a_large_mean_costs_no_more_digits_than_it_costs_the_stock_operation(
    layout: str, no_worse_than_stock: Check
) -> None:
    case = Case((2, 24, 12, 12), 3, silu=False)
    inputs = [t.detach() for t in tensors(case, FORMATS[layout])]
    inputs[0] += 1000.0
    inputs[0][:, :, 0, 0] = -1000.0
    inputs = [t.requires_grad_() for t in inputs]
    dy = torch.randn(case.shape)
    exact, theirs = (stock(case, inputs, dy, dtype) for dtype in (torch.float64, FP32))
    for got, reference, true in zip(fused(case, inputs, dy), theirs, exact, strict=True):
        no_worse_than_stock(got, reference, true)


@pytest.mark.parametrize("pixels", [3, 16], ids=["two passes", "one pass"])
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_what_needs_a_gradient_gets_one(wanted: tuple[int, ...], pixels: int) -> None:
    case = Case((2, 6, pixels, pixels), 2)
    data, dy = tensors(case, FORMATS["contiguous"]), torch.randn(case.shape)
    grads: list[list[Any]] = []
    for which in (range(3), wanted):
        x, w, b = (t.detach().requires_grad_(i in which) for i, t in enumerate(data))
        group_norm(x, 2, w, b, silu=True).backward(dy)
        grads.append([t.grad for t in (x, w, b)])
    assert [i for i, grad in enumerate(grads[1]) if grad is not None] == list(wanted)
    assert all(torch.equal(grads[0][i], grads[1][i]) for i in wanted)


def test_far_from_zero_silu_is_finite_as_the_stock_one() -> None:
    x = torch.tensor([-1.0, 1.0]).view(1, 2, 1)
    results = []
    for call in (lambda *a: group_norm_silu(a[0], 1, *a[1:]), reference):
        inputs = [x.clone(), torch.tensor([200.0, 200.0]), torch.tensor([0.0, 1.0])]
        inputs = [t.requires_grad_() for t in inputs]
        results.append(gradients(call(*inputs), inputs, torch.ones(1, 2, 1)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-3)


def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 1, w, b))


def test_an_empty_batch_runs_no_kernel_and_answers_as_the_stock_operation(ledger: Any) -> None:
    x, w = torch.randn(0, 4, 3, 3, requires_grad=True), torch.ones(4, requires_grad=True)
    y = group_norm_silu(x, 2, w)
    dx, dw = torch.autograd.grad(y.sum(), (x, w))
    assert (y.shape, dx.shape) == (x.shape, x.shape)
    assert torch.equal(dw, torch.zeros(4))
    assert not ledger.loaded


def test_one_value_raises_in_the_words_of_torch() -> None:
    module = nn.GroupNorm(2, 2)
    swap(module)
    messages = []
    for call in (nn.GroupNorm(2, 2), module, lambda x: group_norm(x, 2)):
        with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
            call(torch.randn(1, 2, 1, 1))
        messages.append(str(caught.value))
    assert len(set(messages)) == 1


@pytest.mark.parametrize("layout", FORMATS)
def test_the_same_input_gives_the_same_bits_and_stays_as_it_was(layout: str) -> None:
    case = Case((2, 32, 16, 16), 4, x=BF16)
    inputs = tensors(case, FORMATS[layout])
    before = [t.detach().clone() for t in inputs]
    dy = torch.randn(case.shape)
    first, second = (fused(case, inputs, dy) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def check_traffic(case: Case, layout: str, bytes_each: tuple[int, int], ledger: Any) -> None:
    """Hold the bytes moved by forward and backward against so many for each element."""
    leaf, *affine = tensors(case, FORMATS[layout])
    out = group_norm(leaf, case.groups, *affine, silu=True, dtype=case.y)
    elements, forward = out.numel(), ledger.bytes
    out.backward(torch.ones_like(out))
    for moved, each in zip((forward, ledger.bytes - forward), bytes_each, strict=True):
        assert elements * each <= moved <= 1.05 * elements * each


@pytest.mark.parametrize(
    ("layout", "x", "y", "forward_bytes", "backward_bytes"),
    [("contiguous", FP32, FP32, 12, 20), ("channels last", BF16, FP32, 8, 14)],
)
def test_forward_takes_three_passes_and_backward_five(
    layout: str, x: torch.dtype, y: torch.dtype, forward_bytes: int, backward_bytes: int,
    ledger: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("gradwatch.kernels.group_norm._TILE", 64 * 1024)
    case = Case((2, 64, 64, 64), 8, x=x, y=y)
    check_traffic(case, layout, (forward_bytes, backward_bytes), ledger)


@pytest.mark.parametrize(
    ("layout", "x", "y", "forward_bytes", "backward_bytes"),
    [("contiguous", BF16, FP32, 6, 8), ("channels last", FP32, FP32, 8, 12)],
)
def test_groups_in_one_program_are_read_and_written_once(
    layout: str, x: torch.dtype, y: torch.dtype, forward_bytes: int, backward_bytes: int,
    ledger: Any,
) -> None:  # fmt: skip
    case = Case((8, 64, 16, 16), 4, x=x, y=y)
    check_traffic(case, layout, (forward_bytes, backward_bytes), ledger)


def test_channels_that_do_not_split_are_refused() -> None:
    with pytest.raises(ValueError, match="6 channels do not split into 4 groups"):
        group_norm(torch.randn(2, 6, 3), 4)
