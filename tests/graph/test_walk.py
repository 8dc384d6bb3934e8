"""The walk against graphs whose every node is known."""

import gc
import threading
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gradwatch.graph import Surroundings, walk
from gradwatch.graph.operations import operation_of
from gradwatch.graph.options import MOST_NODES
from gradwatch.layers import LayerMap
from tests.graph.conftest import look


def chain_of(length: int) -> nn.Sequential:
    return nn.Sequential(*[part for _ in range(length) for part in (nn.Linear(3, 3), nn.Tanh())])


def test_each_node_stands_in_the_module_that_made_it() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4))
    seen = look(net, lambda: net(torch.ones(2, 4)).square().mean())
    made = {(node.layer, node.operation) for node in seen.nodes if node.operation != "parameter"}
    assert made == {
        ("<loss>", "mean"),
        ("<loss>", "pow"),
        ("2", "native_layer_norm"),
        ("1", "tanh"),
        ("0", "addmm"),
        ("0", "t"),
    }
    assert set(seen.reached) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_work_between_modules_belongs_to_the_module_around_them() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).sin())

    net = nn.Sequential(Block())
    seen = look(net, lambda: net(torch.ones(2, 3)).sum())
    assert [node.layer for node in seen.nodes if node.operation == "sin"] == ["0"]


def test_depth_is_that_of_the_longest_way_and_every_user_comes_first() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    loss = (y.exp().sin() + y).sum()
    seen = walk([loss], Surroundings({}, lambda _: ""))
    assert [(node.operation, node.depth) for node in seen.nodes] == [
        ("sum", 0),
        ("add", 1),
        ("sin", 2),
        ("exp", 3),
        ("mul", 4),
        ("parameter", 5),
    ]
    assert [seen.nodes[index].operation for index in seen.way(5)] == [
        "sum", "add", "sin", "exp", "mul", "parameter",
    ]  # fmt: skip


def test_a_way_round_counts_and_a_normalisation_begins_anew() -> None:
    weight = nn.Parameter(torch.ones(2, 4))
    around = Surroundings({weight: "weight"}, lambda _: "")

    def run(loss: Tensor) -> int:
        seen = walk([loss], around)
        return seen.nodes[seen.reached["weight"]].saturating

    deep = weight.sigmoid().tanh().sigmoid()
    assert run(deep.sum()) == 3
    assert run((deep + weight).sum()) == 0
    assert run((deep * weight).sum()) == 0
    assert run(F.layer_norm(weight.sigmoid(), (4,)).tanh().sum()) == 1


def test_two_thousand_layers_are_walked_without_recursion() -> None:
    net = chain_of(2000)
    seen = look(net, lambda: net(torch.ones(1, 3)).sum())
    assert not seen.stopped
    assert len(seen.reached) == 4000
    assert seen.nodes[seen.reached["0.weight"]].saturating == 2000


def test_a_graph_of_a_hundred_thousand_nodes_is_walked_to_the_bound_and_let_go() -> None:
    x = torch.ones(1, requires_grad=True)
    for _ in range(100_000):
        x = x + 1
    seen = walk([x], Surroundings({}, lambda _: ""))
    del x
    assert seen.stopped
    assert len(seen.nodes) == 15_001
    assert seen.nodes[-1].depth == 15_000


def test_as_many_nodes_as_may_be_asked_for_are_let_go_of_one_within_the_other() -> None:
    x = torch.ones(1, requires_grad=True)
    for _ in range(MOST_NODES - 1):
        x = x + 1
    seen = walk([x], Surroundings({}, lambda _: "", most_nodes=MOST_NODES))
    worker = threading.Thread(target=lambda held: held.clear(), args=([x],))
    del x
    worker.start()
    worker.join()
    assert (len(seen.nodes), seen.stopped) == (MOST_NODES, False)


def test_several_roots_of_which_one_uses_another_are_one_graph() -> None:
    x = torch.ones(3, requires_grad=True)
    inner = x.exp()
    outer = inner.sin()
    seen = walk([inner, outer, outer, torch.ones(2)], Surroundings({}, lambda _: ""))
    assert Counter(node.operation for node in seen.nodes) == {"sin": 1, "exp": 1, "parameter": 1}


def test_nothing_that_needs_no_gradient_has_a_graph() -> None:
    assert walk([torch.ones(2)], Surroundings({}, lambda _: "")).nodes == []


def test_the_graph_is_let_go_with_the_loss() -> None:
    class Pack:
        def __init__(self, kept: Tensor) -> None:
            self.kept = kept.detach()

    net, held = chain_of(4), []

    def pack(kept: Tensor) -> Pack:
        held.append(weakref.ref(made := Pack(kept)))
        return made

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.kept):
        loss = net(torch.ones(2, 3)).sum()
    seen = walk([loss], Surroundings(LayerMap(net).parameter_names, lambda _: ""))
    assert any(each() for each in held)
    gc.disable()
    del loss
    assert not any(each() for each in held)
    gc.enable()
    assert len(seen.reached) == 8


def test_what_was_made_before_the_step_is_told_apart() -> None:
    net = nn.Linear(3, 3)
    state = net(torch.ones(2, 3)).tanh()
    seen = look(net, lambda: net(state).sum())
    assert seen.earlier == 3
    assert seen.joint == "<root>"
    assert Counter(node.layer for node in seen.nodes)["<an earlier step>"] == 3


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_are_walked_and_never_run_again(reentrant: bool) -> None:
    runs = []

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            runs.append(1)
            return self.inner(x).tanh()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.block, x, use_reentrant=reentrant)

    net, x = Net(), torch.ones(2, 3, requires_grad=True)
    seen = look(net, lambda: net(x).sum())
    assert len(runs) == 1
    assert seen.edits == ()
    assert ("inner.weight" in str(seen.reached)) is not reentrant


def test_a_compiled_model_is_walked_as_one_function() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    compiled = torch.compile(net, backend="aot_eager")
    names = LayerMap(net).parameter_names
    seen = walk([compiled(torch.ones(2, 3)).sum()], Surroundings(names, lambda _: ""))
    assert set(seen.reached) == {"0.weight", "0.bias"}
    assert "compiled_function" in {node.operation for node in seen.nodes}


def test_a_custom_function_is_walked_by_its_name() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    x = torch.ones(2, requires_grad=True)
    kept = x * 1
    doubled: Any = Twice.apply(kept)  # type: ignore[no-untyped-call]
    seen = walk([doubled.sum()], Surroundings({}, lambda _: ""))
    assert [node.operation for node in seen.nodes] == ["sum", "twice", "mul", "parameter"]


def test_an_edit_of_a_kept_tensor_is_found_with_what_kept_it_and_what_made_it() -> None:
    x = torch.ones(2, 5, requires_grad=True)
    kept = x.mul(2)
    loss = kept.exp().sum() + kept.sin().sum()
    with torch.no_grad():
        kept.add_(1)
        kept.add_(1)
    (edit,) = walk([loss], Surroundings({}, lambda _: "net")).edits
    assert edit == ("net", "sin", "self", "2, 5", "mul", 2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_kept_weight_that_was_stepped_is_found() -> None:
    net = nn.Linear(3, 3)
    x = torch.ones(2, 3, requires_grad=True)
    loss = net(x).sum()
    with torch.no_grad():
        net.weight.add_(1)
    edits = walk([loss], Surroundings(LayerMap(net).parameter_names, lambda _: "")).edits
    assert [(edit.operation, edit.kept) for edit in edits] == [("addmm", "mat2")]


def test_a_graph_that_was_used_up_is_still_walked() -> None:
    x = torch.ones(2, requires_grad=True)
    loss = x.exp().sum()
    loss.backward()
    seen = walk([loss], Surroundings({}, lambda _: ""))
    assert [node.operation for node in seen.nodes] == ["sum", "exp", "parameter"]
    assert [(edit.operation, edit.writes) for edit in seen.edits] == [("exp", 0)]


def test_a_graph_of_another_thread_is_walked() -> None:
    made: list[Tensor] = []
    x = torch.ones(2, requires_grad=True)
    worker = threading.Thread(target=lambda: made.append(x.exp().sum()))
    worker.start()
    worker.join()
    assert len(walk(made, Surroundings({}, lambda _: "")).nodes) == 3


@pytest.mark.parametrize(
    ("node", "operation"),
    [
        ("NativeBatchNormBackward0", "native_batch_norm"),
        (
            "ScaledDotProductFusedAttentionBackward0",
            "scaled_dot_product_fused_attention",
        ),
        ("PowBackward0", "pow"),
        ("MeanBackward1", "mean"),
        ("CopySlices", "copy_slices"),
        ("ForeachMulBackward1Scalar", "foreach_mul"),
        ("torch::autograd::AccumulateGrad", "parameter"),
    ],
)
def test_a_node_is_named_as_its_operation(node: str, operation: str) -> None:
    assert operation_of(node) == operation
