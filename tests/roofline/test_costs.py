"""Operations and bytes of each layer, against numbers worked out by hand."""

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from gradwatch.memory.saved import saved_by_layer
from gradwatch.roofline.costs import CostCounter, LayerCost
from gradwatch.roofline.spans import Spans

F32 = 4
I64 = 8


def count(module: nn.Module, *inputs: Tensor, grad: Tensor | None = None) -> dict[str, LayerCost]:
    """Count one forward and one backward; the gradient at the output is dense."""
    spans = Spans(module)
    counter, own = CostCounter(spans), [*module.parameters(), *module.buffers()]
    with ExitStack() as watching:
        watching.callback(spans.attach())
        watching.enter_context(counter)
        out = module(*inputs)
        out = out[0] if isinstance(out, tuple) else out
        counter.paused = True
        saved = saved_by_layer([out], own, lambda number: spans.find(number).layer)
        counter.paused = False
        out.backward(torch.ones_like(out) if grad is None else grad)
    counter.finish()
    assert counter.error is None
    for layer, held in saved.items():
        counter.layers.setdefault(layer, LayerCost()).saved_bytes = held
    return counter.layers


def figures(cost: LayerCost) -> dict[str, float]:
    return {
        "forward flops": cost.forward.flops,
        "backward flops": cost.backward.flops,
        "forward bytes": cost.forward.moved_bytes,
        "backward bytes": cost.backward.moved_bytes,
        "saved bytes": cost.saved_bytes,
    }


def inner(*shape: int) -> Tensor:
    """Make an input that needs a gradient and is no leaf, as inside of a network."""
    return torch.randn(*shape, requires_grad=True) * 1


def test_a_linear_layer_costs_what_its_three_products_cost() -> None:
    b, i, o = 5, 16, 8
    cost = count(nn.Linear(i, o), inner(b, i))["<root>"]
    assert figures(cost) == {
        "forward flops": 2 * b * i * o,
        # Two products, and one addition an element for the bias.
        "backward flops": 4 * b * i * o + b * o,
        "forward bytes": F32 * (b * i + i * o + o + b * o),
        # Read: gradient, input, weight. Written: gradients of input, weight, bias.
        "backward bytes": F32 * (b * o + b * i + i * o + b * i + i * o + o),
        "saved bytes": F32 * b * i,
    }
    assert (cost.forward.kernels, cost.backward.kernels) == (1, 3)


def test_a_convolution_costs_what_its_products_cost() -> None:
    b, c, o, size, k = 2, 3, 4, 8, 3
    out = size - k + 1
    cost = count(nn.Conv2d(c, o, k), inner(b, c, size, size))["<root>"]
    macs = b * o * out * out * c * k * k
    x, y, w = b * c * size * size, b * o * out * out, o * c * k * k
    assert figures(cost) == {
        "forward flops": 2 * macs,
        "backward flops": 4 * macs,
        "forward bytes": F32 * (x + w + o + y),
        "backward bytes": F32 * (y + x + w + x + w + o),
        "saved bytes": F32 * x,
    }


def test_a_layer_norm_moves_each_tensor_once() -> None:
    rows, n = 6, 16
    cost = count(nn.LayerNorm(n), inner(rows, n))["<root>"]
    x = rows * n
    assert figures(cost) == {
        "forward flops": x,
        "backward flops": x,
        # Input, weight, bias, output, and a mean and an inverse deviation for each row.
        "forward bytes": F32 * (x + 2 * n + x + 2 * rows),
        # The gradient, what was saved, weight and bias; gradients of all three.
        "backward bytes": F32 * (x + x + 2 * rows + 2 * n + x + 2 * n),
        "saved bytes": F32 * (x + 2 * rows),
    }


def test_a_batch_norm_moves_each_tensor_once_and_its_statistics() -> None:
    b, c, size = 2, 3, 4
    cost = count(nn.BatchNorm2d(c), inner(b, c, size, size))["<root>"]
    x = b * c * size * size
    figure = figures(cost)
    assert figure["forward flops"] == x + 1  # and the counter of batches
    assert figure["backward flops"] == x
    # Input, weight and bias, running statistics, output, saved statistics; the counter.
    assert figure["forward bytes"] == F32 * (x + 2 * c + 2 * c + x + 2 * c) + 2 * I64
    read = x + x + c + 2 * c + 2 * c  # gradient, input, weight, saved and running statistics
    assert figure["backward bytes"] == F32 * (read + x + 2 * c)


def test_an_embedding_moves_the_rows_it_picks_and_a_gradient_of_the_whole_table() -> None:
    table, d, picked = 10, 4, 5
    cost = count(nn.Embedding(table, d), torch.arange(picked))["<root>"]
    rows = F32 * picked * d
    assert figures(cost) == {
        "forward flops": 0,
        "backward flops": 0,
        "forward bytes": I64 * picked + rows + rows,
        "backward bytes": rows + I64 * picked + F32 * table * d,
        "saved bytes": I64 * picked,
    }


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def test_attention_costs_two_products_forward_and_reads_and_writes_each_tensor_once() -> None:
    b, h, s, e = 2, 2, 8, 16
    q, k, v = (inner(b, h, s, e) for _ in range(3))
    cost = count(Attention(), q, k, v)["<root>"]
    x, lse = b * h * s * e, b * h * s
    assert cost.forward.flops == 2 * (2 * b * h * s * s * e)
    # Four products of gradients, and the scores once more.
    assert cost.backward.flops == 5 * (2 * b * h * s * s * e)
    assert cost.forward.moved_bytes == F32 * (3 * x + x + lse)
    # Gradient, queries, keys, values, output, sums; three gradients.
    assert cost.backward.moved_bytes == F32 * (x + 3 * x + x + lse + 3 * x)


def test_multi_head_attention_counts_its_four_projections_and_two_products() -> None:
    b, s, e = 2, 5, 16
    x = inner(b, s, e)
    layers = count(nn.MultiheadAttention(e, 2, batch_first=True), x, x, x)
    matrix = sum(sum(cost.forward.matrix_flops.values()) for cost in layers.values())
    projections = 4 * (2 * b * s * e * e)
    assert matrix == projections + 2 * (2 * b * s * s * e)


@pytest.mark.parametrize(
    ("module", "shape", "reads", "writes"),
    [
        # Tensors of the activation's size: forward reads and writes, backward reads and writes.
        (nn.ReLU(), (64, 32), (1, 2), (1, 1)),
        (nn.ReLU(inplace=True), (64, 32), (1, 2), (1, 1)),
        (nn.GELU(), (64, 32), (1, 2), (1, 1)),
        (nn.Dropout(0.5), (64, 32), (1, 2), (2, 1)),
        (nn.Softmax(-1), (64, 32), (1, 2), (1, 1)),
    ],
    ids=["relu", "relu in place", "gelu", "dropout", "softmax"],
)
def test_elementwise_layers_move_so_many_activations(
    module: nn.Module, shape: tuple[int, ...], reads: tuple[int, int], writes: tuple[int, int]
) -> None:
    cost = count(module, inner(*shape))["<root>"]
    size = F32 * shape[0] * shape[1]
    assert cost.forward.moved_bytes == size * (reads[0] + writes[0])
    assert cost.backward.moved_bytes == size * (reads[1] + writes[1])


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def test_what_a_parent_does_itself_is_its_own() -> None:
    layers = count(Residual(), inner(4, 8))
    assert layers["<root>"].forward.moved_bytes == 3 * F32 * 4 * 8
    assert layers["<root>"].forward.kernels == 1
    assert layers["inner"].forward.kernels == 1


class Twice(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.block, self._reentrant = nn.Linear(8, 8), reentrant

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.block, x, use_reentrant=self._reentrant)
        return out


# Without re-entering, a recomputation stops as soon as what was saved is there again.
@pytest.mark.parametrize(("reentrant", "products"), [(True, 3), (False, 2)])
def test_a_recomputed_forward_belongs_to_the_backward_of_its_layer(
    reentrant: bool, products: int
) -> None:
    layers = count(Twice(reentrant=reentrant), inner(4, 8))
    once = 2 * 4 * 8 * 8
    assert layers["block"].forward.matrix_flops == {"float32": once}
    assert layers["block"].backward.matrix_flops == {"float32": products * once}


class First(nn.Module):
    def forward(self, pair: tuple[Tensor, Any]) -> Tensor:
        return pair[0]


def test_an_activation_saved_twice_counts_once_and_parameters_never() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    layers = count(model, inner(4, 8))
    activation = F32 * 4 * 8
    # The second product saves its input, which is the activation's output, saved already.
    assert [layers[name].saved_bytes for name in "012"] == [activation, activation, 0]


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(16, 4),
        nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.Flatten()),
        nn.Sequential(nn.Unflatten(1, (4, 4)), nn.LSTM(4, 8, batch_first=True), First()),
    ],
    ids=["linear", "convolution", "recurrence"],
)
def test_products_are_those_of_torchs_own_counter(module: nn.Module) -> None:
    with FlopCounterMode(display=False) as theirs:
        module(inner(3, 16)).sum().backward()
    layers = count(module, inner(3, 16))
    ours = sum(
        flops
        for cost in layers.values()
        for phase in (cost.forward, cost.backward)
        for flops in phase.matrix_flops.values()
    )
    assert ours == theirs.get_total_flops()


def test_products_under_autocast_are_counted_under_their_dtype() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        layers = count(nn.Linear(8, 8), inner(4, 8))
    assert set(layers["<root>"].forward.matrix_flops) == {"bfloat16"}


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.func.grad(lambda value: (value**3).sum())(x) * x


def test_a_model_that_uses_functional_transforms_runs_as_without_us() -> None:
    x = inner(3, 4)
    expected = Inner()(x.detach())
    spans = Spans(module := Inner())
    counter = CostCounter(spans)
    with ExitStack() as watching:
        watching.callback(spans.attach())
        watching.enter_context(counter)
        assert torch.equal(module(x), expected)
    assert counter.error is None
    assert counter.layers


def test_counting_changes_no_number() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.LayerNorm(8))
    x = torch.randn(4, 8)
    torch.manual_seed(2)
    model(x).sum().backward()
    plain = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    torch.manual_seed(2)
    count(model, x, grad=torch.ones(4, 8))
    counted = [parameter.grad for parameter in model.parameters()]
    assert all(
        torch.equal(left, right)
        for left, right in zip(plain, counted, strict=True)
        if left is not None and right is not None
    )
