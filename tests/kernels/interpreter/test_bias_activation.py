"""Activation of a Linear, with the gradient of its bias: interpreted, against float64 and torch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.fused import linear_gelu, linear_relu
from gradwatch.kernels._bands import plan_bands
from gradwatch.kernels.bias_activation import _PER_THREAD, ACTIVATIONS, bias_activation
from tests.kernels.interpreter.layouts import ROW_GRADIENTS, ROWS

Check = Callable[..., None]
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
INF, NAN = float("inf"), float("nan")

STOCK: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class Case(NamedTuple):
    """Sizes and dtypes of one call; under autocast the bias is float32."""

    rows: int
    n: int
    z: torch.dtype = FP32
    bias: torch.dtype | None = FP32


CASES = [
    Case(37, 100),
    Case(5, 1),
    Case(1, 1),
    Case(300, 33),
    Case(3, 2049),
    Case(20, 64, bias=None),
    Case(65, 1000, BF16, FP32),
    Case(65, 1000, BF16, BF16),
    Case(9, 96, FP16, FP16),
]


def outcome(y: Tensor, inputs: list[Tensor], dy: Tensor) -> list[Tensor]:
    return [y.detach(), *torch.autograd.grad(y, inputs, dy.to(y.dtype))]


def ours(act: str, inputs: list[Tensor], dy: Tensor) -> list[Tensor]:
    z, bias = [*inputs, None][:2]
    assert z is not None
    return outcome(bias_activation(z, bias, act), inputs, dy)


def stock(act: str, inputs: list[Tensor], dtype: torch.dtype, dy: Tensor) -> list[Tensor]:
    """Give z its bias's history, not its value: z holds that already."""
    z, *bias = copies = [t.detach().to(dtype).requires_grad_() for t in inputs]
    return outcome(STOCK[act](z + (bias[0] - bias[0].detach()) if bias else z), copies, dy)


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_error_is_at_most_twice_the_stock_operations(
    case: Case, act: str, no_worse_than_stock: Check, rounded_once: Check
) -> None:
    shapes = {(case.rows, case.n): case.z} | ({(case.n,): case.bias} if case.bias else {})
    inputs = [torch.randn(s).mul(2).to(d).requires_grad_() for s, d in shapes.items()]
    dy = torch.randn(case.rows, case.n).to(case.z)
    got, theirs, exact = (
        ours(act, inputs, dy),
        *(stock(act, inputs, dtype, dy) for dtype in (FP32, torch.float64)),
    )
    assert [t.dtype for t in got] == [case.z, *(t.dtype for t in inputs)]
    for fused, reference, true in zip(got, theirs, exact, strict=True):
        no_worse_than_stock(fused, reference.to(fused.dtype), true)
    if case.z == BF16 and act != "gelu":
        for fused, true in zip(got[:2], exact[:2], strict=True):
            rounded_once(fused, true)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_infinite_huge_and_absent_numbers_answer_as_in_torch(act: str) -> None:
    z = torch.tensor([[0.0, -0.0, 1e-30, 90.0, -90.0, 1e9, -1e9, INF, -INF, NAN]])
    inputs = [z.requires_grad_(), torch.zeros(10).requires_grad_()]
    for dy in (torch.ones(1, 10), torch.full((1, 10), INF)):
        expected = stock(act, inputs, FP32, dy)
        torch.testing.assert_close(ours(act, inputs, dy), expected, equal_nan=True)


@pytest.mark.parametrize("act", ["relu", "gelu"])
@pytest.mark.parametrize("of", ROWS)
@pytest.mark.parametrize("grad", ["half of rows", "expanded"])
def test_every_layout_gives_the_bits_of_the_contiguous_one(act: str, of: str, grad: str) -> None:
    z, d, b = torch.randn(3, 5, 8), torch.randn(3, 5, 8), torch.randn(8)
    dy = ROW_GRADIENTS[grad](d)
    results = []
    for layout, dense in ((ROWS[of], dy), (ROWS["contiguous"], dy.contiguous())):
        inputs = [layout(z).detach().requires_grad_(), b.clone().requires_grad_()]
        results.append(ours(act, inputs, dense))
    assert all(torch.equal(a, c) for a, c in zip(*results, strict=True))
    assert results[0][0].is_contiguous()


@pytest.mark.parametrize("act", ["relu", "gelu"])
@pytest.mark.parametrize("wanted", [0, 1])
def test_only_what_needs_a_gradient_gets_one(act: str, wanted: int) -> None:
    data, dy = [torch.randn(7, 40), torch.randn(40)], torch.randn(7, 40)
    inputs = [t.clone().requires_grad_(i == wanted) for i, t in enumerate(data)]
    bias_activation(inputs[0], inputs[1], act).backward(dy)
    both = ours(act, [t.requires_grad_() for t in data], dy)
    grads = [t.grad for t in inputs]
    assert grads[1 - wanted] is None
    torch.testing.assert_close(grads[wanted], both[1 + wanted], rtol=0.0, atol=0.0)


@pytest.mark.parametrize("act", ["relu", "gelu"])
@pytest.mark.parametrize("shape", [(0, 8), (4, 0), (2, 0, 6)])
def test_an_empty_batch_gives_zero_gradients(act: str, shape: tuple[int, ...], ledger: Any) -> None:
    inputs = [torch.randn(shape).requires_grad_(), torch.randn(shape[-1]).requires_grad_()]
    y, dz, db = ours(act, inputs, torch.ones(shape))
    assert y.shape == dz.shape == shape
    assert torch.equal(db, torch.zeros(shape[-1]))
    assert not ledger.loaded


def test_the_same_input_gives_the_same_bits_and_stays_as_it_was() -> None:
    inputs = [torch.randn(700, 64).bfloat16().requires_grad_(), torch.randn(64).requires_grad_()]
    before, dy = [t.detach().clone() for t in inputs], torch.randn(700, 64).bfloat16()
    for act in ("relu", "gelu_tanh"):
        first, second = (ours(act, inputs, dy) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize(("act", "passes"), [("relu", 2 + 1 / 16), ("gelu_tanh", 3)])
def test_the_backward_reads_and_writes_every_tensor_once(
    act: str, passes: float, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwatch.kernels._bands._TILE", 64 * 1024)
    z, b = torch.randn(2048, 512).bfloat16().requires_grad_(), torch.randn(512, requires_grad=True)
    y = bias_activation(z, b, act)
    forward, one = ledger.bytes, y.numel() * 2
    assert forward <= 1.05 * one * (2 + 1 / 16 if act == "relu" else 2)
    y.backward(torch.ones_like(y))
    assert ledger.bytes - forward <= 1.05 * one * passes


@pytest.mark.parametrize("n", [3072, 4096, 16384])
def test_partial_sums_as_shipped_stay_within_the_floor(n: int) -> None:
    rows, floor = 16384, 2 * (2 + 1 / 16)
    plan = plan_bands(rows, n, torch.device("cpu"), per_thread=_PER_THREAD)
    written_and_read = 8
    assert plan.bands * written_and_read / rows <= 0.05 * floor


@pytest.mark.parametrize(("act", "kept"), [("relu", 4 * 4), ("gelu", 4 * 100 + 100)])
def test_relu_saves_bits_and_gelu_its_input(act: str, kept: int) -> None:
    saved: list[int] = []
    z, b = torch.randn(4, 100, requires_grad=True), torch.randn(100, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()), lambda s: s):
        bias_activation(z, b, act)
    assert sum(saved) == kept


@pytest.mark.parametrize("fused", [linear_relu, linear_gelu])
def test_with_the_product_it_is_no_worse_than_linear_and_activation(
    fused: Callable[..., Tensor], no_worse_than_stock: Check
) -> None:
    act = F.relu if fused is linear_relu else F.gelu
    x, w, b = torch.randn(50, 64), torch.randn(96, 64) / 8, torch.randn(96)
    results = []
    for take, dtype in ((fused, BF16), (None, BF16), (None, torch.float64)):
        inputs = [t.bfloat16().to(dtype).requires_grad_() for t in (x, w, b)]
        y = take(*inputs) if take else act(F.linear(*inputs))
        results.append(outcome(y, inputs, torch.ones(()).expand_as(y)))
    for got, theirs, true in zip(*results, strict=True):
        no_worse_than_stock(got, theirs, true)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bias has the last dimension of z, \(2, 8\); got \(7,\)"):
        bias_activation(torch.randn(2, 8), torch.randn(7), "relu")
    with pytest.raises(ValueError, match="one of"):
        bias_activation(torch.randn(2, 8), torch.randn(8), "silu")
    with pytest.raises(ValueError, match="approximate is one of"):
        linear_gelu(torch.randn(2, 8), torch.randn(3, 8), approximate="erf")
