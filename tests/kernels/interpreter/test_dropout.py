"""Dropout, interpreted: its mask against Philox written out, the rest against float64."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from gradwatch.kernels._bands import tile
from gradwatch.kernels.dropout import dropout
from tests.kernels.interpreter.layouts import ROW_GRADIENTS, ROWS

Check = Callable[..., None]
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
LOW = 2**32 - 1


@pytest.fixture
def big_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreting costs by the operation, not by the element."""
    monkeypatch.setattr("gradwatch.kernels._bands._TILE", 64 * 1024)


def philox(key: int, c0: int, c1: int) -> list[int]:
    """Philox4x32-10 as in the paper (Salmon et al., 2011), one counter at a time."""
    c, k = [c0, c1, 0, 0], [key & LOW, key >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & LOW, (a >> 32) ^ c[3] ^ k[1], a & LOW]
        k = [(k[0] + 0x9E3779B9) & LOW, (k[1] + 0xBB67AE85) & LOW]
    return c


def kept(rows: int, n: int, p: float, key: int) -> Tensor:
    """Draw the mask element by element, as the kernel's docstring tells it."""
    step = tile(n, 4)[0]
    mask = torch.empty(rows, n, dtype=torch.bool)
    for r in range(rows):
        lane, j = r // (8 * step) * step + r % step, r // step % 8
        for column in range(n):
            word = philox(key, column, lane)[j // 2]
            mask[r, column] = ((word >> 16 * (j % 2)) & 0xFFFF) >= round(65536 * p)
    return mask


def drawn(shape: tuple[int, ...], p: float, key: int, dtype: torch.dtype = FP32) -> Tensor:
    return dropout(torch.ones(shape, dtype=dtype), p, seed=torch.tensor([key])) != 0


def test_philox_written_out_gives_the_published_numbers() -> None:
    assert philox(0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize(("rows", "n"), [(37, 70), (5, 1), (150, 5)])
def test_the_mask_is_philox_of_seed_row_and_column(rows: int, n: int) -> None:
    key = 2**61 + 12345678901
    assert torch.equal(drawn((rows, n), 0.3, key), kept(rows, n, 0.3, key))


def test_rows_that_follow_do_not_change_the_mask() -> None:
    assert torch.equal(drawn((900, 40), 0.5, 3)[:77], drawn((77, 40), 0.5, 3))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.99])
def test_a_share_of_p_is_dropped_and_elements_are_independent(p: float, big_tiles: None) -> None:
    mask = drawn((500, 200), p, 11).double()
    spread = (p * (1 - p) / mask.numel()) ** 0.5
    assert abs(float(mask.mean()) - (1 - p)) <= 5 * spread + 1e-5
    for other in (mask.roll(1, 0), mask.roll(1, 1), mask.roll(32, 0), drawn((500, 200), p, 12)):
        both = (mask * other).mean()
        assert abs(float(both) - (1 - p) ** 2) <= 5 * ((1 - p) ** 2 / mask.numel()) ** 0.5


class Case(NamedTuple):
    """Sizes, dtypes and what is added."""

    rows: int
    n: int
    x: torch.dtype = FP32
    bias: torch.dtype | None = FP32
    residual: bool = True


CASES = [
    Case(37, 100),
    Case(1, 1, bias=None),
    Case(300, 33, residual=False),
    Case(3, 2049),
    Case(65, 1000, BF16, FP32),
    Case(65, 1000, BF16, BF16, residual=False),
    Case(9, 96, FP16, FP16),
]


def outcome(y: Tensor, inputs: list[Tensor], dy: Tensor) -> list[Tensor]:
    return [y.detach(), *torch.autograd.grad(y, inputs, dy.to(y.dtype))]


def ours(case: Case, inputs: list[Tensor], p: float, dy: Tensor) -> list[Tensor]:
    x, *rest = inputs
    bias = rest.pop(0) if case.bias else None
    residual = rest.pop(0) if case.residual else None
    return outcome(dropout(x, p, bias, residual=residual, seed=torch.tensor([5])), inputs, dy)


def stock(
    case: Case, inputs: list[Tensor], p: float, dtype: torch.dtype, dy: Tensor
) -> list[Tensor]:
    """Run the layer in plain operations on the mask of that seed."""
    x, *rest = copies = [t.detach().to(dtype).requires_grad_() for t in inputs]
    y = x + rest.pop(0) if case.bias else x
    y = y * drawn((case.rows, case.n), p, 5, case.x) / (1 - p)
    return outcome(y + rest.pop(0) if case.residual else y, copies, dy)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_error_is_at_most_twice_the_stock_operations(
    case: Case,
    no_worse_than_stock: Check,
    rounded_once: Check,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if case.rows * case.n > 20_000:
        monkeypatch.setattr("gradwatch.kernels._bands._TILE", 64 * 1024)
    shape = (case.rows, case.n)
    inputs = [torch.randn(shape).to(case.x)]
    inputs += [torch.randn(case.n).to(case.bias)] if case.bias else []
    inputs += [torch.randn(shape).to(case.x)] if case.residual else []
    inputs = [t.requires_grad_() for t in inputs]
    dy = torch.randn(shape).to(case.x)
    got = ours(case, inputs, 0.3, dy)
    theirs, exact = (stock(case, inputs, 0.3, d, dy) for d in (FP32, torch.float64))
    assert [t.dtype for t in got] == [case.x, *(t.dtype for t in inputs)]
    for fused, reference, true in zip(got, theirs, exact, strict=True):
        no_worse_than_stock(fused, reference.to(fused.dtype), true)
        if fused.dtype == BF16 and fused.numel() > 1000:
            rounded_once(fused, true)


@pytest.mark.parametrize("of", ROWS)
@pytest.mark.parametrize("grad", ["half of rows", "expanded"])
def test_every_layout_gives_the_bits_of_the_contiguous_one(of: str, grad: str) -> None:
    x, r, d = torch.randn(3, 3, 5, 8).unbind(0)
    dy = ROW_GRADIENTS[grad](d)
    results = []
    for layout, dense in ((ROWS[of], dy), (ROWS["contiguous"], dy.contiguous())):
        inputs = [layout(t).detach().requires_grad_() for t in (x, r)]
        inputs.append(torch.ones(8, requires_grad=True))
        y = dropout(inputs[0], 0.5, inputs[2], residual=inputs[1], seed=torch.tensor([1]))
        results.append(outcome(y, inputs, dense))
    assert all(torch.equal(a, c) for a, c in zip(*results, strict=True))
    assert results[0][0].is_contiguous()


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_only_what_needs_a_gradient_gets_one(wanted: int, ledger: Any) -> None:
    data = [torch.randn(7, 16), torch.randn(16), torch.randn(7, 16)]
    inputs = [t.requires_grad_(i == wanted) for i, t in enumerate(data)]
    y = dropout(inputs[0], 0.5, inputs[1], residual=inputs[2])
    forward = ledger.bytes
    y.sum().backward()
    assert [i for i, t in enumerate(inputs) if t.grad is not None] == [wanted]
    assert (ledger.bytes == forward) == (wanted == 2)


@pytest.mark.parametrize("shape", [(0, 8), (4, 0), (2, 0, 6)])
def test_an_empty_batch_gives_zero_gradients(shape: tuple[int, ...], ledger: Any) -> None:
    x, b = torch.randn(shape, requires_grad=True), torch.randn(shape[-1], requires_grad=True)
    y, dx, db = outcome(dropout(x, 0.5, b), [x, b], torch.ones(shape))
    assert y.shape == dx.shape == shape
    assert torch.equal(db, torch.zeros(shape[-1]))
    assert not ledger.loaded


def test_the_same_seed_gives_the_same_bits_and_inputs_stay_as_they_were() -> None:
    x, b = torch.randn(1500, 16).bfloat16().requires_grad_(), torch.randn(16, requires_grad=True)
    before, dy, results = x.detach().clone(), torch.randn(1500, 16).bfloat16(), []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(outcome(dropout(x, 0.1, b), [x, b], dy))
    assert all(torch.equal(a, c) for a, c in zip(*results, strict=True))
    assert torch.equal(x, before)


def test_what_is_not_finite_stays_so_where_it_is_dropped() -> None:
    y = dropout(torch.full((64, 8), float("inf")), 0.5)
    assert y.isnan().any()
    assert not y.isfinite().any()


@pytest.mark.parametrize(("residual", "passes"), [(False, 2), (True, 3)])
def test_every_tensor_is_read_and_written_once_and_no_mask_is_kept(
    residual: bool, passes: int, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwatch.kernels._bands._TILE", 64 * 1024)
    saved: list[int] = []
    x, b = torch.randn(2048, 512).bfloat16().requires_grad_(), torch.randn(512, requires_grad=True)
    r = torch.randn(2048, 512).bfloat16().requires_grad_() if residual else None

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda s: s):
        y = dropout(x, 0.1, b, residual=r)
    assert saved == [1]
    forward, one = ledger.bytes, y.numel() * 2
    assert forward <= 1.05 * one * passes
    y.backward(torch.ones_like(y))
    assert ledger.bytes - forward <= 1.05 * one * 2


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bias has the last dimension of x, \(2, 8\); got \(7,\)"):
        dropout(torch.randn(2, 8), 0.5, torch.randn(7))
    with pytest.raises(ValueError, match=r"residual must be like x, \(2, 8\)"):
        dropout(torch.randn(2, 8), 0.5, residual=torch.randn(8))
    with pytest.raises(ValueError, match=r"p is 0 to 0.99; got 1.0"):
        dropout(torch.randn(2, 8), 1.0)
