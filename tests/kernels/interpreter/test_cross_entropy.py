"""Softmax cross-entropy, interpreted, against float64 autograd and the stock operation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.fused import cross_entropy

Check = Callable[..., None]
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
INF = float("inf")


class Case(NamedTuple):
    """Sizes, dtypes and options of one call."""

    rows: int
    classes: int
    x: torch.dtype = FP32
    loss: torch.dtype = FP32
    weighted: bool = False
    label_smoothing: float = 0.0
    reduction: str = "mean"


CASES = [
    Case(7, 10),
    Case(5, 1),
    Case(1, 4097, reduction="sum"),
    Case(9, 1000, reduction="none"),
    Case(9, 1000, weighted=True),
    Case(9, 1000, label_smoothing=0.1),
    Case(9, 5000, weighted=True, label_smoothing=0.3, reduction="sum"),
    Case(9, 5000, BF16, FP32, label_smoothing=0.1),
    Case(9, 5000, BF16, BF16, weighted=True),
    Case(9, 5000, FP16, FP32, reduction="none"),
    Case(2, 128_257, BF16, FP32),
]


def outcome(loss: Tensor, x: Tensor, grad: Tensor) -> list[Tensor]:
    """Return the loss and its gradient."""
    return [loss.detach(), *torch.autograd.grad(loss, x, grad.to(loss.dtype))]


def stock(
    dtype: torch.dtype, case: Case, grad: Tensor, x: Tensor, *rest: Tensor | None
) -> list[Tensor]:
    t, weight = rest
    assert t is not None
    copy = x.detach().to(dtype).requires_grad_()
    weight = None if weight is None else weight.to(dtype)
    options: dict[str, Any] = {"label_smoothing": case.label_smoothing, "reduction": case.reduction}
    return outcome(F.cross_entropy(copy, t, weight, **options), copy, grad)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_error_is_at_most_twice_the_stock_operations(
    case: Case, no_worse_than_stock: Check, rounded_once: Check
) -> None:
    x = torch.randn(case.rows, case.classes).mul(3).to(case.x).requires_grad_()
    t = torch.randint(0, case.classes, (case.rows,))
    t[1:2] = -100
    weight = torch.rand(case.classes) if case.weighted else None
    loss = cross_entropy(
        x,
        t,
        weight,
        label_smoothing=case.label_smoothing,
        reduction=case.reduction,
        dtype=case.loss,
    )
    grad = torch.rand(loss.shape).to(case.loss)
    ours = outcome(loss, x, grad)
    theirs, exact = (stock(d, case, grad, x, t, weight) for d in (FP32, torch.float64))
    assert [r.dtype for r in ours] == [case.loss, case.x]
    for got, reference, true in zip(ours, theirs, exact, strict=True):
        no_worse_than_stock(got, reference.to(got.dtype), true)
    if case.x == BF16:
        rounded_once(ours[1], exact[1])


@pytest.mark.parametrize(
    "row",
    [
        [-INF, 1.0, -INF, 2.0],
        [-INF, -INF, -INF, -INF],
        [INF, 0.0, 1.0, 2.0],
        [float("nan"), 0.0, 1.0, 2.0],
        [1e30, -1e30, 0.0, 1.0],
    ],
    ids=str,
)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_infinite_and_huge_logits_answer_as_in_torch(
    row: list[float], label_smoothing: float
) -> None:
    results = []
    for take in (cross_entropy, F.cross_entropy):
        x = torch.tensor([row], requires_grad=True)
        loss = take(x, torch.tensor([3]), label_smoothing=label_smoothing)
        loss.backward()
        results.append((loss.detach(), x.grad))
    torch.testing.assert_close(*results, equal_nan=True)


def test_a_block_of_masked_classes_does_not_poison_the_finite_rest() -> None:
    x = torch.randn(2, 9000)
    x[0, :5000] = -INF
    t = torch.tensor([8000, 8000])
    torch.testing.assert_close(cross_entropy(x, t), F.cross_entropy(x, t))


@pytest.mark.parametrize(("reduction", "value"), [("mean", float("nan")), ("sum", 0.0)])
def test_ignoring_every_row_answers_as_in_torch(reduction: str, value: float) -> None:
    loss = cross_entropy(torch.randn(3, 5), torch.full((3,), -100), reduction=reduction)
    torch.testing.assert_close(loss, torch.tensor(value), equal_nan=True)


def test_a_target_that_is_no_class_gives_nan_and_reads_nothing_else() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    losses = cross_entropy(x, torch.tensor([0, 5, -1]), reduction="none")
    losses.sum().backward()
    assert losses.isnan().tolist() == [False, True, True]
    assert x.grad is not None
    assert x.grad.isnan().all(1).tolist() == [False, True, True]


@pytest.mark.parametrize("layout", ["contiguous", "every second", "transposed", "rows apart"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_every_layout_gives_the_bits_of_the_contiguous_one(layout: str, reduction: str) -> None:
    dense, t = torch.randn(6, 10), torch.randint(0, 10, (6,))
    spread = {
        "contiguous": dense,
        "every second": torch.stack([dense, dense + 9], -1).flatten(1)[:, ::2],
        "transposed": dense.t().contiguous().t(),
        "rows apart": torch.cat([dense, dense + 9], 1)[:, :10],
    }[layout]
    results = []
    for x in (spread.detach(), dense.clone()):
        loss = cross_entropy(x.requires_grad_(), t, reduction=reduction)
        loss.sum().backward()  # expands one number over the rows
        results.append((loss, x.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_batch_of_sequences_keeps_its_shape() -> None:
    x, t = torch.randn(2, 3, 7), torch.randint(0, 7, (2, 3))
    expected = F.cross_entropy(x.flatten(0, 1), t.flatten(), reduction="none").view(2, 3)
    torch.testing.assert_close(cross_entropy(x, t, reduction="none"), expected)


def test_an_empty_batch_launches_nothing(ledger: Any) -> None:
    x = torch.randn(0, 5, requires_grad=True)
    loss = cross_entropy(x, torch.empty(0, dtype=torch.int64), reduction="sum")
    loss.backward()
    assert loss == 0
    assert x.grad is not None
    assert x.grad.shape == (0, 5)
    assert not ledger.bytes


def test_the_same_input_gives_the_same_bits_and_stays_as_it_was() -> None:
    x, t = torch.randn(20, 3000).bfloat16().requires_grad_(), torch.randint(0, 3000, (20,))
    before = x.detach().clone()
    (loss, dx), (again, dx_again) = (
        outcome(cross_entropy(x, t, dtype=FP32), x, torch.ones(())) for _ in range(2)
    )
    assert torch.equal(loss, again)
    assert torch.equal(dx, dx_again)
    assert torch.equal(x, before)


def test_logits_are_read_once_forward_and_read_and_written_once_backward(ledger: Any) -> None:
    x = torch.randn(3, 128_256).bfloat16().requires_grad_()
    loss = cross_entropy(x, torch.tensor([5, 128_255, 0]), dtype=FP32)
    forward = ledger.bytes
    assert forward <= 1.05 * x.numel() * 2
    loss.backward()
    assert ledger.bytes - forward <= 1.05 * x.numel() * 4


def test_only_one_number_a_row_is_saved() -> None:
    saved: list[Tensor] = []
    x = torch.randn(4, 1000, requires_grad=True)

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda s: s):
        cross_entropy(x, torch.tensor([1, 2, 3, 4]))
    assert sum(s.numel() for s in saved if s.data_ptr() != x.data_ptr()) == 4 + 4 + 1


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reduction is one of .* got 'avg'"):
        cross_entropy(torch.randn(2, 3), torch.tensor([0, 1]), reduction="avg")


def test_a_target_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"without the last dimension, \(2,\); got \(3,\)"):
        cross_entropy(torch.randn(2, 3), torch.tensor([0, 1, 2]))
