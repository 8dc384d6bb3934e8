"""Taps see the gradient at every kind of output, replace nothing and come off."""

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from gradwatch import MemorySink, watch
from gradwatch.hooks import Taps, tensors_in
from gradwatch.layers import LayerMap


@dataclass
class Out:
    h: Tensor
    note: str = ""


class Pair(NamedTuple):
    h: Tensor
    other: Tensor | None = None


SHAPES: dict[str, tuple[Any, Any]] = {
    "tensor": (lambda h: h, lambda out: out),
    "dictionary": (lambda h: {"h": h, "n": 3}, lambda out: out["h"]),
    "nested": (lambda h: [(h, None), {"k": 1}], lambda out: out[0][0]),
    "dataclass": (Out, lambda out: out.h),
    "named tuple": (Pair, lambda out: out.h),
}


class Shaped(nn.Module):
    """A layer that hands its result out in a shape of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self._wrap = SHAPES[kind][0]

    def forward(self, x: Tensor) -> Any:
        return self._wrap(x @ self.weight)


def make_taps(model: nn.Module) -> Taps:
    return Taps(model, LayerMap(model).layers, native=False)


@pytest.mark.parametrize("kind", SHAPES)
def test_the_gradient_at_an_output_of_any_shape_is_seen(kind: str) -> None:
    model = nn.ModuleDict({"layer": Shaped(kind)})
    taps = make_taps(model)
    undo = taps.attach()
    h = SHAPES[kind][1](model["layer"](torch.ones(2, 3)))
    (h * 3.0).sum().backward()
    undo()
    ((name, norm),) = taps.take()
    assert name == "layer"
    assert float(norm) == pytest.approx(3.0 * 6**0.5)
    assert taps.take() == []


def test_an_in_place_operation_after_a_layer_is_borne() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    bare = copy.deepcopy(model)
    taps = make_taps(model)
    undo = taps.attach()
    for each in (model, bare):
        each(torch.ones(2, 3)).sum().backward()
    undo()
    pairs = zip(model.parameters(), bare.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)  # type: ignore[arg-type]
    assert [name for name, _ in taps.take()] == ["2", "0"]


def test_a_layer_called_twice_is_counted_and_seen_twice() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer)
    taps = make_taps(model)
    undo = taps.attach()
    layer(layer(torch.ones(2, 3))).sum().backward()
    undo()
    assert taps.calls == {"0": 2}
    assert len(taps.take()) == 2


def test_coverage_says_what_is_seen_and_why_not() -> None:
    model = nn.ModuleDict(
        {
            "seen": nn.Linear(2, 2),
            "unused": nn.Linear(2, 2),
            "frozen": nn.Linear(2, 2).requires_grad_(False),
            "quick": nn.TransformerEncoderLayer(2, 1, 4).eval(),
        }
    )
    taps = make_taps(model)
    undo = taps.attach()
    model["seen"](torch.ones(1, 2))
    undo()
    told = {cover.layer: (cover.state, cover.reason) for cover in taps.coverage()}
    assert told["seen"] == ("hooked", "")
    assert told["unused"] == ("parameter gradients only", "never called")
    assert told["frozen"] == ("blind", "never called")
    assert "fast path" in told["quick.linear1"][1]


def test_no_hook_is_left_after_the_undo_called_twice() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    undo = make_taps(model).attach()
    assert any(module._forward_hooks for module in model.modules())
    undo()
    undo()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_tensors_are_found_to_a_depth() -> None:
    deep: Any = torch.ones(1)
    for _ in range(20):
        deep = [deep]
    assert list(tensors_in(deep)) == []
    assert len(list(tensors_in({"a": (torch.ones(1), {torch.ones(2)})}))) == 2


def test_a_compiled_wrapper_is_traced_without_the_hooks_and_said_to_be_compiled() -> None:
    net, sink = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), MemorySink()
    torch._dynamo.reset()
    compiled: Any = torch.compile(net, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(compiled, optimizer, console=False, sinks=[sink]) as watched:
        for _ in range(2):
            optimizer.zero_grad()
            compiled(torch.randn(5, 4)).sum().backward()
            optimizer.step()
    assert [each.reason for each in sink.coverage] == ["compiled", "compiled"]
    assert watched.findings == ()
    torch._dynamo.reset()
