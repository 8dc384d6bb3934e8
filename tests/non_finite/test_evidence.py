"""The numbers around a fault: extremes, counts, first bad index, samples, line and chain."""

from collections.abc import Callable
from math import isnan

import pytest
import torch
from torch import Tensor, nn

from gradwatch.non_finite import evidence
from gradwatch.non_finite.blame import Blame
from gradwatch.non_finite.describe import finding_of
from gradwatch.non_finite.evidence import Seen, Tally, empty_rows, tallies, tally
from tests.modules import Apply

Examine = Callable[..., Blame]
NAN, INF = float("nan"), float("inf")


def deep(function: Callable[[Tensor], Tensor]) -> nn.Sequential:
    before = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]
    return nn.Sequential(*before, Apply(function), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))


def blame_in(examine: Examine, function: Callable[[Tensor], Tensor]) -> Blame:
    model = deep(function)
    return examine(model, lambda x: model(x).pow(2).mean(), torch.randn(5, 4))


def mask_third(x: Tensor) -> Tensor:
    hidden = torch.zeros_like(x, dtype=torch.bool)
    hidden[3] = True
    return torch.softmax(x.masked_fill(hidden, -INF), -1)


def root_in_place(x: Tensor) -> Tensor:
    return (x - x.detach()).add_(0.0).sqrt_()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_and_the_two_infinities_are_counted_apart(dtype: torch.dtype) -> None:
    seen = tally(torch.tensor([[0.0, NAN, -2.0], [INF, -INF, INF]], dtype=dtype))
    assert (seen.nan, seen.plus_inf, seen.minus_inf, seen.zeros) == (1, 2, 1, 1)
    assert (seen.low, seen.high, seen.first_bad) == (-2.0, 0.0, (0, 1))
    assert seen.extremes() == (-INF, INF)


def test_one_number_nothing_and_integers_are_counted_too() -> None:
    assert tally(torch.tensor(3.0)).high == 3
    assert tally(torch.tensor(NAN)).first_bad == ()
    assert isnan(tally(torch.empty(0, 4)).low)
    assert tally(torch.tensor([0, 7])).zeros == 1
    assert tally(torch.tensor([True, False])).zeros == 1


def test_a_complex_tensor_keeps_its_own_shape_and_index() -> None:
    seen = tally(torch.tensor([[1 + 1j, complex(NAN, 0)]]))
    assert (seen.shape, seen.first_bad, seen.nan) == ((1, 2), (0, 1), 1)


def test_where_memory_is_out_shape_and_type_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Tensor) -> Tally:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(evidence, "tally", refuse)
    assert tallies([torch.ones(2, 3)]) == (Tally(shape=(2, 3), dtype="float32"),)


@pytest.mark.parametrize(
    ("number", "dtype", "lost"),
    [
        (1e-8, "float16", True),
        (1e-4, "float16", False),
        (1 - 1e-4, "bfloat16", True),
        (1e-8, "bfloat16", False),
        (1e-30, "float32", False),
        (0.0, "float16", False),
    ],
)
def test_a_number_is_lost_where_its_type_rounds_it_to_the_edge(
    number: float, dtype: str, lost: bool
) -> None:
    seen = Seen(outputs=(Tally(dtype=dtype),), numbers=(number,))
    assert (seen.lost_number() is not None) is lost


def test_rows_of_a_softmax_are_counted_along_its_dimension() -> None:
    scores = torch.zeros(2, 3, 4)
    scores[0, :, 1] = -INF
    assert empty_rows("aten::_softmax", [scores, 1, False]) == 1
    assert empty_rows("aten::_softmax", [scores, -1, False]) == 0
    assert empty_rows("aten::exp", [scores, 1]) == -1


def test_inputs_outputs_and_the_first_bad_index_are_told(examine: Examine) -> None:
    blame = blame_in(examine, mask_third)
    assert str(blame.evidence["inputs"]).startswith("float32 5×4: min -inf, max ")
    assert "4 -inf" in str(blame.evidence["inputs"])
    assert "4 NaN" in str(blame.evidence["outputs"])
    assert blame.evidence["first bad index"] == "(3, 0)"
    assert blame.samples == (3,)
    assert "1 row of 5×4 holds only -inf (sample 3)" in blame.cause


def test_of_a_backward_fault_the_forward_line_and_its_inputs_are_told(examine: Examine) -> None:
    blame = blame_in(examine, root_in_place)
    assert blame.phase == "backward"
    assert "(x - x.detach()).add_(0.0).sqrt_()" in blame.source
    assert "20 zero" in str(blame.evidence["forward inputs"])
    assert blame.cause == ("the derivative of sqrt at 0 is infinite: 20 of 20 inputs are exactly 0")


@pytest.mark.parametrize("function", [mask_third, root_in_place, torch.log])
def test_the_chain_leads_from_the_birth_to_the_first_bad_parameter(
    examine: Examine, function: Callable[[Tensor], Tensor]
) -> None:
    blame = blame_in(examine, function)
    first, *_, last = str(blame.evidence["chain"]).split(" → ")
    assert "3 (" in first
    assert len(str(blame.evidence["chain"]).split(" → ")) <= 5
    # The backward pass reaches the last layer first, or the layer before the root.
    assert last == ("2.weight" if blame.phase == "backward" else "6.weight")


def test_the_finding_gives_each_kind_of_evidence_a_line_of_its_own(examine: Examine) -> None:
    lines = finding_of(blame_in(examine, mask_third), 1204).lines()
    heads = [line.split()[0] for line in lines[1:]]
    assert lines[0] == "non_finite in 3 at step 1,204: NaN born in 3, aten::_softmax"
    assert heads == [
        "written", "evidence", "inputs", "outputs", "chain", "cause", "remedy", "replayed",
    ]  # fmt: skip
    assert lines[-1].split() == ["replayed", "reproducible"]
