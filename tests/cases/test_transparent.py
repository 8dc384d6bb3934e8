"""Models that ordinary hooks break: watched, they train bit for bit as they do alone."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from gradwatch import MemorySink, watch

Run = Callable[..., Any]
Note = Callable[[str, str, str], None]


class Shortcut(nn.Module):
    """Add the input onto the output in place."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        out += x
        return out


class Twice(nn.Module):
    """Run a block under activation checkpointing."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.enc, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, self.enc(x), use_reentrant=self.reentrant))


class Bag(nn.Module):
    """Average embeddings, their gradient sparse or dense."""

    def __init__(self, *, sparse: bool, rows: int = 10) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(rows, 4, sparse=sparse), nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.emb(words).mean(1))


class Attend(nn.Module):
    """Attend to oneself; the output projection is used, but never called."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attn(x, x, x)[0])


def conv_inplace() -> nn.Module:
    conv = nn.Conv2d(3, 4, 3)
    return nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 3))


def chain_inplace() -> nn.Module:
    first, second = nn.Linear(4, 8), nn.Linear(8, 8)
    activation = nn.LeakyReLU(inplace=True)
    return nn.Sequential(first, activation, second, nn.SiLU(inplace=True), nn.Linear(8, 3))


def residual() -> nn.Module:
    inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    return nn.Sequential(Shortcut(inner), nn.Linear(4, 3))


def residual_norm() -> nn.Module:
    return nn.Sequential(Shortcut(nn.LayerNorm(4)), Shortcut(nn.Linear(4, 4)), nn.Linear(4, 3))


def make_batches(*shape: int, count: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(*shape), torch.randn(shape[0], 3)) for _ in range(count)]


def make_word_batches(rows: int = 10) -> list[tuple[Tensor, Tensor]]:
    # Repeated words make the sparse gradient uncoalesced.
    words = torch.tensor([[1, 1, 2], [1, 3, 3], [rows - 1, 1, 1]])
    return [(words, torch.randn(3, 3)) for _ in range(3)]


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    for (name, a), (_, b) in pairs:
        assert torch.equal(a, b), name


@pytest.mark.parametrize("hooks", ["sampled", "every_step"])
@pytest.mark.parametrize(
    ("case", "make", "shape"),
    [
        ("a01", conv_inplace, (2, 3, 8, 8)),
        ("a01", chain_inplace, (5, 4)),
        ("a02", residual, (5, 4)),
        ("a02", residual_norm, (2, 4)),
    ],
)
def test_in_place_operations_after_a_layer_train_as_if_unwatched(
    run: Run, bare: Run, note: Note, case: str, make: Any, shape: tuple[int, ...], hooks: str
) -> None:
    net, batches = make(), make_batches(*shape)
    twin = copy.deepcopy(net)
    expected = bare(twin, batches)
    outcome = run(net, batches, backward_hooks=hooks)
    assert_same_weights(expected, outcome.model)
    assert outcome.findings == ()
    note(case, "trains exactly as without the monitor", "weights bit-equal, nothing told")


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_block_counts_once_and_trains_as_if_unwatched(
    run: Run, bare: Run, note: Note, reentrant: bool
) -> None:
    net, batches = Twice(reentrant=reentrant), make_batches(5, 4)
    expected = bare(copy.deepcopy(net), batches)
    outcome = run(net, batches, backward_hooks="every_step")
    assert_same_weights(expected, outcome.model)
    assert outcome.findings == ()
    assert [record.step for record in outcome.sink.records] == [0, 1, 2]
    note("a07", "one record a step, nothing doubled", "weights bit-equal, 3 records in 3 steps")


@pytest.mark.parametrize("rows", [10, 5000])
def test_a_sparse_gradient_has_the_norm_of_the_dense_one(run: Run, note: Note, rows: int) -> None:
    sparse, dense = Bag(sparse=True, rows=rows), Bag(sparse=False, rows=rows)
    dense.load_state_dict(sparse.state_dict())
    batches = make_word_batches(rows)
    norms = [
        outcome.sink.records[-1].flow.grad_norm
        for outcome in (run(sparse, batches), run(dense, batches))
    ]
    torch.testing.assert_close(*(torch.tensor(norm) for norm in norms), rtol=1e-6, atol=0)
    note("a10", "norm equals the dense one", f"{norms[0][0]:.6g} (sparse), {norms[1][0]:.6g}")


@pytest.mark.parametrize(("width", "heads"), [(8, 2), (12, 3)])
def test_a_projection_that_is_used_but_never_called_has_its_gradient_and_no_alarm(
    run: Run, note: Note, width: int, heads: int
) -> None:
    batches = [(torch.randn(2, 5, width), torch.randn(2, 5, 1)) for _ in range(8)]
    outcome = run(Attend(width, heads), batches)
    flow = outcome.sink.records[-1].flow
    assert flow.grad_norm[flow.layers.index("net.attn.out_proj")] > 0
    assert outcome.findings == ()
    note("a13", "out_proj has its gradient, is not 'unused'", "norm > 0 under net.attn.out_proj")


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_gives_the_same_in_eval_while_it_is_watched(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=norm_first)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = layer.eval()(x)
    with watch(layer.train(), optimizer, console=False):
        layer(x).mean().backward()
        optimizer.step()
        with torch.no_grad():
            assert torch.equal(layer.eval()(x), expected)


def test_a_watched_model_copies_and_pickles_without_a_live_hook(note: Note) -> None:
    model, sink = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, console=False, sinks=[sink], backward_hooks="every_step"):
        model(torch.randn(2, 4)).mean().backward()
        twin, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))  # noqa: S301
        optimizer.step()
        for other in (twin, loaded):
            rate = torch.optim.SGD(other.parameters(), lr=0.1)
            other(torch.randn(2, 4)).mean().backward()
            rate.step()
    assert len(sink.records) == 1
    note("a16", "pickle and deepcopy work, the copy is not watched", "both work, no record of it")


def per_sample(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    weights = {name: weight.detach() for name, weight in net.named_parameters()}

    def total(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(net, weights, (sample,)).sum()

    gradients: dict[str, Tensor] = vmap(grad(total), in_dims=(None, 0))(weights, x)
    return gradients


@pytest.mark.parametrize("hooks", ["sampled", "every_step"])
def test_per_sample_gradients_inside_a_training_step_are_unchanged(
    run: Run, note: Note, hooks: str
) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    seen: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []

    def loss(model: Any, batch: Any) -> Tensor:
        inside = per_sample(model.net, batch[0])
        seen.append((inside, per_sample(copy.deepcopy(model.net), batch[0])))
        return (model(batch[0]) - batch[1]).square().mean()

    outcome = run(net, make_batches(5, 4), loss=loss, backward_hooks=hooks)
    assert len(outcome.sink.records) == 3
    assert outcome.findings == ()
    for inside, alone in seen:
        assert all(torch.equal(inside[name], alone[name]) for name in alone)
    note("a18", "torch.func transforms run unchanged", "per-sample gradients bit-equal")
