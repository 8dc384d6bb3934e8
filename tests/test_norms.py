"""Norms against a slow, obvious reference in float64, for every dtype and layout."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.norms import NormGroup, NormPlan, as_plain, measurable, scaled_norm

EPSILON = {
    torch.float16: 1e-5,
    torch.bfloat16: 1e-5,
    torch.float32: 1e-5,
    torch.float64: 1e-13,
}
SHAPES = ((), (1,), (7,), (33, 5), (3, 1, 129))


def measure_slowly(tensor: Tensor) -> float:
    """Sum the squares one by one; Python's own numbers, scaled by the largest."""
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    values = [abs(complex(value)) for value in dense.flatten().tolist()]
    largest = max(values, default=0.0)
    if largest == 0.0:
        return 0.0
    return largest * math.sqrt(math.fsum((value / largest) ** 2 for value in values))


def in_order(groups: list[NormGroup], count: int) -> list[float]:
    norms = [math.nan] * count
    for group in groups:
        for place, value in zip(group.places, group.values.tolist(), strict=True):
            norms[place] = value
    return norms


def measure(tensors: list[Tensor], *, exact: bool) -> list[float]:
    chosen = range(len(tensors)) if exact else ()
    return in_order(NormPlan(tensors).measure(tensors, exact=chosen), len(tensors))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e2])
def test_dense_norms_are_right(dtype: torch.dtype, exact: bool, size: float) -> None:
    tensors = [(torch.randn(shape) * size).to(dtype) for shape in SHAPES]
    slow = [measure_slowly(tensor) for tensor in tensors]
    assert measure(tensors, exact=exact) == pytest.approx(slow, rel=EPSILON[dtype])


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float16, 6e4),
        (torch.float16, 6e-8),
        (torch.bfloat16, 1e38),
        (torch.bfloat16, 1e-38),
        (torch.float32, 1e-30),
        (torch.float32, 1e-42),
        (torch.float32, 1e25),
        (torch.float64, 1e-200),
        (torch.float64, 1e200),
    ],
    ids=str,
)
def test_an_exact_norm_is_right_over_the_whole_range_of_its_dtype(
    dtype: torch.dtype, size: float
) -> None:
    tensor = torch.full((33, 5), size, dtype=torch.float64).to(dtype)
    assert measure([tensor], exact=True) == pytest.approx([measure_slowly(tensor)], rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_that_overflows_in_its_own_type_has_a_finite_norm(dtype: torch.dtype) -> None:
    tensor = torch.full((300, 300), 500.0, dtype=dtype)
    assert measure([tensor], exact=False) == pytest.approx([measure_slowly(tensor)], rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", EPSILON, ids=str)
def test_a_bad_value_shows_in_the_norm(dtype: torch.dtype, exact: bool, bad: float) -> None:
    tensor = torch.ones(5, 7, dtype=dtype)
    tensor[3, 2] = bad
    assert not math.isfinite(measure([tensor], exact=exact)[0])


@pytest.mark.parametrize("exact", [False, True])
def test_sparse_gradients_are_coalesced_first(exact: bool) -> None:
    indices = torch.tensor([[1, 1, 3]])
    values = torch.tensor([[3.0, 0.0], [1.0, 3.0], [2.0, 2.0]])
    tensor = torch.sparse_coo_tensor(indices, values, (5, 2), check_invariants=True)
    assert not tensor.is_coalesced()
    assert measure([tensor], exact=exact) == pytest.approx([math.sqrt(16 + 9 + 4 + 4)])


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_gradients_have_a_real_norm(dtype: torch.dtype, exact: bool) -> None:
    tensor = torch.randn(9, 3, dtype=dtype)
    assert measure([tensor], exact=exact) == pytest.approx([measure_slowly(tensor)], rel=1e-5)


@pytest.mark.parametrize("exact", [False, True])
def test_an_empty_tensor_has_norm_zero_beside_others(exact: bool) -> None:
    tensors = [torch.ones(4), torch.empty(0, 3), torch.zeros(2)]
    assert measure(tensors, exact=exact) == [2.0, 0.0, 0.0]


def test_a_mixed_list_comes_back_in_its_order() -> None:
    tensors: list[Tensor] = [
        torch.full((4,), 1.0, dtype=torch.float64),
        torch.full((4,), 2.0, dtype=torch.bfloat16),
        torch.full((4,), 3.0),
        torch.full((4,), 4.0).to_sparse(),
        torch.full((4,), 5.0j),
        torch.full((4,), 6.0, dtype=torch.float16),
    ]
    assert measure(tensors, exact=False) == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    exact = in_order(NormPlan(tensors).measure(tensors, exact={1, 3, 5}), 6)
    assert exact == pytest.approx([2.0, 4.0, 6.0, 8.0, 10.0, 12.0])


def test_a_view_that_is_not_contiguous_is_measured_as_it_is() -> None:
    tensor = torch.arange(30.0).reshape(5, 6).t()[1::2]
    assert measure([tensor], exact=True) == pytest.approx([measure_slowly(tensor)])


LEFT_OUT: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "integers": lambda: torch.ones(3, dtype=torch.int64),
    "booleans": lambda: torch.ones(3, dtype=torch.bool),
    "lazy": lambda: nn.LazyLinear(3).weight,
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_has_no_norm_is_left_out(kind: str) -> None:
    assert not measurable(LEFT_OUT[kind]())


def test_a_narrow_float_is_widened() -> None:
    narrow = torch.tensor([0.5, 2.0]).to(torch.float8_e4m3fn)
    assert measurable(narrow)
    assert as_plain(narrow).dtype is torch.float32
    assert measure([narrow], exact=False) == pytest.approx([math.sqrt(4.25)])


def test_a_zero_is_zero_and_not_nan() -> None:
    assert scaled_norm(torch.zeros(3)).item() == 0.0
