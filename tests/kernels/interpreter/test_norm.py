"""LayerNorm and RMSNorm, interpreted, against float64 autograd and the stock operation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.fused import add_layer_norm, add_rms_norm
from gradwatch.kernels.norm import norm
from tests.kernels.interpreter.layouts import ROW_GRADIENTS, ROWS

Check = Callable[..., None]
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16

# As shipped, for the smaller cases: with it the larger ones would take a minute to interpret.
TILE = 2048


class Case(NamedTuple):
    """Shapes and dtypes of one call; under CUDA's autocast the output is float32."""

    rows: int
    n: int
    x: torch.dtype = FP32
    y: torch.dtype = FP32
    weight: torch.dtype | None = FP32


CASES = [
    Case(37, 100),
    Case(1, 1),
    Case(5, 1),
    Case(300, 33),
    Case(3, 8192),
    Case(64, 1024, weight=None),
    Case(65, 1000, BF16, FP32),
    Case(65, 1000, BF16, BF16),
    Case(65, 1000, BF16, BF16, BF16),
    Case(65, 1000, FP32, BF16),
    Case(9, 96, FP16, FP16, FP16),
]


def stock(x: Tensor, n: int, w: Tensor | None, b: Tensor | None, center: bool) -> Tensor:
    return F.layer_norm(x, (n,), w, b) if center else F.rms_norm(x, (n,), w, 1e-5)


def gradients(y: Tensor, inputs: list[Tensor], dy: Tensor) -> list[Tensor]:
    return [y.detach(), *torch.autograd.grad(y, inputs, dy.to(y.dtype))]


def tensors(case: Case, center: bool) -> list[Tensor]:
    inputs = [torch.randn(case.rows, case.n).mul(2).add(1).to(case.x)]
    if case.weight is not None:
        inputs += [torch.randn(case.n).to(case.weight) for _ in range(2 if center else 1)]
    return [x.requires_grad_() for x in inputs]


def run(inputs: list[Tensor], dtype: torch.dtype, center: bool, dy: Tensor) -> list[Tensor]:
    """Run the stock operation on copies of another dtype."""
    x, *affine = copies = [t.detach().to(dtype).requires_grad_() for t in inputs]
    w, b = [*affine, None, None][:2]
    return gradients(stock(x, x.shape[-1], w, b, center), copies, dy)


@pytest.mark.parametrize("center", [True, False], ids=["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_error_is_at_most_twice_the_stock_operations(
    case: Case,
    center: bool,
    no_worse_than_stock: Check,
    rounded_once: Check,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if case.rows * case.n > 10 * TILE:
        monkeypatch.setattr("gradwatch.kernels._tiles._TILE", 8 * TILE)
    inputs = tensors(case, center)
    dy = torch.randn(case.rows, case.n).to(case.y)
    ours = gradients(norm(inputs[0], case.n, *inputs[1:], center=center, dtype=case.y), inputs, dy)
    exact = run(inputs, torch.float64, center, dy)
    theirs = run(inputs, FP32, center, dy)
    assert [t.dtype for t in ours] == [case.y, *(x.dtype for x in inputs)]
    for got, reference, true in zip(ours, theirs, exact, strict=True):
        no_worse_than_stock(got, reference.to(got.dtype), true)
        if got.dtype != FP32 and got.numel() > 1000:
            rounded_once(got, true)


@pytest.mark.parametrize("of", ROWS)
@pytest.mark.parametrize("grad", ROW_GRADIENTS)
def test_every_layout_gives_the_bits_of_the_contiguous_one(of: str, grad: str) -> None:
    x, w, b = torch.randn(3, 5, 8), torch.randn(8), torch.randn(8)
    dy = ROW_GRADIENTS[grad](torch.randn(3, 5, 8))
    results = []
    for layout, dense in ((ROWS[of], dy), (ROWS["contiguous"], dy.contiguous())):
        inputs = [t.requires_grad_() for t in (layout(x).detach(), w.clone(), b.clone())]
        results.append(gradients(norm(inputs[0], 8, *inputs[1:]), inputs, dense))
    assert all(torch.equal(a, c) for a, c in zip(*results, strict=True))
    assert results[0][0].is_contiguous()


@pytest.mark.parametrize("add", [add_layer_norm, add_rms_norm])
def test_a_fused_residual_gives_sum_and_norm_and_both_gradients(
    add: Callable[..., tuple[Tensor, Tensor]], no_worse_than_stock: Check
) -> None:
    center = add is add_layer_norm
    x, r, dy, ds = torch.randn(4, 17, 96).bfloat16().unbind(0)
    w = torch.randn(96)

    def outcome(dtype: torch.dtype, fused: bool) -> list[Tensor]:
        a, c, v = (t.detach().to(dtype).requires_grad_() for t in (x, r, w.to(x.dtype)))
        if fused:
            y, s = add(a, c, (96,), v, eps=1e-5)
        else:
            s = (a + c).bfloat16().to(dtype)
            y = stock(s, 96, v, None, center)
        grads = torch.autograd.grad([y, s], [a, c, v], [dy.to(dtype), ds.to(dtype)])
        return [y.detach(), s.detach(), *grads]

    ours, theirs, exact = outcome(BF16, True), outcome(FP32, False), outcome(torch.float64, False)
    for got, reference, true in zip(ours, theirs, exact, strict=True):
        no_worse_than_stock(got, reference.bfloat16(), true)
    assert torch.equal(ours[1], x + r)


def test_the_gradient_of_the_sum_alone_passes_through() -> None:
    x, r = torch.randn(2, 3, 16).requires_grad_().unbind(0)
    _, s = add_layer_norm(x, r, (16,))
    (grad,) = torch.autograd.grad(s, x, torch.full((3, 16), 2.0))
    assert torch.equal(grad, torch.full((3, 16), 2.0))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_what_needs_a_gradient_gets_one(wanted: tuple[int, ...]) -> None:
    data = [torch.randn(7, 16), torch.randn(16), torch.randn(16)]
    dy = torch.randn(7, 16)
    grads: list[list[Any]] = []
    for which in ((0, 1, 2), wanted):
        inputs = [t.clone().requires_grad_(i in which) for i, t in enumerate(data)]
        norm(inputs[0], 16, *inputs[1:]).backward(dy)
        grads.append([t.grad for t in inputs])
    assert [i for i, grad in enumerate(grads[1]) if grad is not None] == list(wanted)
    assert all(torch.equal(grads[0][i], grads[1][i]) for i in wanted)


def test_an_empty_batch_gives_zero_gradients(ledger: Any) -> None:
    inputs = [torch.randn(0, 8), torch.randn(8), torch.randn(8)]
    x, w, b = (t.requires_grad_() for t in inputs)
    y = norm(x, 8, w, b)
    dx, dw, db = torch.autograd.grad(y.sum(), (x, w, b))
    assert (y.shape, dx.shape) == ((0, 8), (0, 8))
    assert torch.equal(dw, torch.zeros(8))
    assert torch.equal(db, torch.zeros(8))
    assert not ledger.loaded


def test_the_same_input_gives_the_same_bits_and_stays_as_it_was() -> None:
    inputs = tensors(Case(700, 64, BF16), center=True)
    before = [t.detach().clone() for t in inputs]
    dy = torch.randn(700, 64)
    first, second = (
        gradients(norm(inputs[0], 64, *inputs[1:], dtype=FP32), inputs, dy) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.fixture
def big_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreting costs by the operation, not by the element."""
    monkeypatch.setattr("gradwatch.kernels._tiles._TILE", 64 * 1024)


@pytest.mark.parametrize(
    ("x", "y", "backward_bytes"),
    [(FP32, FP32, 12), (BF16, FP32, 8), (BF16, BF16, 6), (FP32, BF16, 10)],
)
def test_every_tensor_is_read_and_written_once(
    x: torch.dtype, y: torch.dtype, backward_bytes: int, ledger: Any, big_tiles: None
) -> None:
    case = Case(2048, 512, x, y)
    inputs = tensors(case, center=True)
    out = norm(inputs[0], case.n, *inputs[1:], dtype=y)
    elements = case.rows * case.n
    statistics = case.rows * 8
    assert ledger.bytes <= 1.05 * elements * (x.itemsize + y.itemsize) + statistics
    forward = ledger.bytes
    out.backward(torch.ones_like(out))
    assert ledger.bytes - forward <= 1.05 * elements * backward_bytes + statistics


def test_rows_wider_than_a_program_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of 1 to 8192 elements; got 8193"):
        norm(torch.randn(2, 8193), 8193)


def test_a_residual_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"residual must be like x, \(2, 8\)"):
        add_layer_norm(torch.randn(2, 8), torch.randn(8), (8,))
