"""What the trace records: calls, neighbours, who wrote what; and that it changes nothing."""

import gc

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from gradwatch.non_finite.flags import Flags, Value, worst
from gradwatch.non_finite.operations import literal, signature
from gradwatch.non_finite.trace import Operation, Trace

ATEN = torch.ops.aten


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))


def record(model: nn.Module, x: Tensor, *, again: bool = False) -> list[Operation]:
    with Trace(model) as trace:
        out = checkpoint(model, x, use_reentrant=False) if again else model(x)
        out.sum().backward()
    return list(trace.operations.values())


def find(operations: list[Operation], name: str, *, backward: bool = False) -> list[Operation]:
    return [each for each in operations if each.name == name and bool(each.node) is backward]


def test_an_operation_belongs_to_the_innermost_module_that_runs() -> None:
    operations = record(make_model(), torch.randn(3, 4))
    assert [each.call.name for each in find(operations, "aten::addmm")] == ["0", "1.0"]
    assert [each.call.name for each in find(operations, "aten::tanh")] == ["1.1"]


def test_a_backward_belongs_to_the_call_its_forward_stood_in() -> None:
    operations = record(make_model(), torch.randn(3, 4))
    (tanh,) = find(operations, "aten::tanh_backward", backward=True)
    assert (tanh.call.name, tanh.node) == ("1.1", "TanhBackward0")
    weights = find(operations, "aten::mm", backward=True)
    assert [each.call.name for each in weights] == ["1.0", "1.0", "0"]


def test_a_checkpoints_second_run_is_forward_and_the_same_call() -> None:
    operations = record(make_model(), torch.randn(3, 4), again=True)
    first, second = find(operations, "aten::addmm")[:2], find(operations, "aten::addmm")[2:]
    assert [each.call.first for each in second] == [each.call for each in first[: len(second)]]
    assert {each.call.number for each in first + second} == {0}


def test_an_exception_in_the_forward_leaves_no_hook_and_no_open_call() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    trace = Trace(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), trace:
        model(torch.randn(3, 4))
    assert trace.stack.top is trace.stack.outermost
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_results_under_the_trace_are_bit_identical(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.LayerNorm(4)).to(dtype)
    x, gradients = torch.randn(3, 4).to(dtype), []
    for trace in (None, Trace(model)):
        torch.manual_seed(1)
        model.zero_grad()
        if trace is None:
            model(x).sum().backward()
        else:
            with trace:
                model(x).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_the_trace_keeps_no_activation_alive() -> None:
    held = []

    class Peek(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            held.append(StorageWeakRef(y.untyped_storage()))
            return y + 1

    model = Peek()
    with Trace(model), torch.no_grad():
        model(torch.randn(3))
        gc.collect()
        assert held[0].expired()


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        (torch.tensor([1.0, float("nan"), float("inf")]), Value.NAN),
        (torch.tensor([1.0, float("-inf")]), Value.MINUS_INF),
        (torch.tensor([float("inf"), float("-inf")]), Value.INF),
        (torch.tensor([65504.0]).half(), Value.FINITE),
        (torch.tensor([complex(0, float("nan"))]), Value.NAN),
        (torch.tensor([1, 2]), Value.FINITE),
        (torch.empty(0), Value.FINITE),
        (torch.tensor([[0.0, float("inf")]]).to_sparse(), Value.INF),
        (torch.tensor([float("nan")]).to(torch.float8_e5m2), Value.NAN),
        (torch.empty(2, device="meta"), Value.FINITE),
    ],
)
def test_the_worst_value_of_any_tensor_is_known(tensor: Tensor, value: Value) -> None:
    assert worst(tensor) is value


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_compressed_sparse_tensors_are_looked_into() -> None:
    assert worst(torch.tensor([[0.0, float("nan")]]).to_sparse_csr()) is Value.NAN


def test_flags_are_read_by_the_handle_they_were_given() -> None:
    flags = Flags()
    handles = [flags.add(torch.tensor([x])) for x in (1.0, float("nan"), float("-inf"))]
    assert [flags.read()[each] for each in handles] == [
        Value.FINITE,
        Value.NAN,
        Value.MINUS_INF,
    ]


def test_a_signature_tells_views_blanks_and_what_is_overwritten() -> None:
    assert signature(ATEN.t.default).view
    assert signature(ATEN._unsafe_view.default).view
    assert not signature(ATEN.add_.Tensor).view
    assert signature(ATEN.add_.Tensor).written == (0,)
    assert signature(ATEN.empty.memory_format).blank
    assert signature(ATEN.copy_.default).unread == {0}
    assert signature(ATEN.add.out).out == {"out"}


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (float("-inf"), Value.MINUS_INF),
        (float("nan"), Value.NAN),
        (1e308, Value.FINITE),
        (3, Value.FINITE),
    ],
)
def test_a_number_in_the_code_may_be_bad_itself(number: float, value: Value) -> None:
    assert literal(number) is value
