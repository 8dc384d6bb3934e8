"""Operations read off the graph are those that a dispatch mode saw."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.graph.places import Places
from gradwatch.memory import measure_saved
from gradwatch.roofline.costs import CostCounter
from gradwatch.roofline.spans import Spans
from tests.modules import Apply


class First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)[0]
        return out


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x, x, x, need_weights=False)[0]
        return out


def seen(model: nn.Module, x: Tensor) -> float:
    spans = Spans(model)
    undo = spans.attach()
    with CostCounter(spans) as counter:
        model(x)
    undo()
    assert counter.error is None
    return sum(cost.forward.flops for cost in counter.layers.values())


def read(model: nn.Module, x: Tensor) -> float:
    places = Places(model)
    undo = places.attach()
    out = model(x)
    undo()
    saved = measure_saved([out], places, [])
    return {layer.name: layer.flops for layer in saved.layers}["<root>"]


def grouped(x: Tensor) -> Tensor:
    q = x.view(2, 6, 4, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q[:, :2], q[:, :2], enable_gqa=True)


MASK = torch.arange(8) % 3 == 0
MODELS = {
    "linear": nn.Linear(8, 3),
    "linear without bias, frozen": nn.Linear(8, 3, bias=False).requires_grad_(requires_grad=False),
    "convolution": nn.Conv1d(6, 4, 3, groups=2),
    "transposed convolution": nn.ConvTranspose1d(6, 4, 3, stride=2),
    "norms": nn.Sequential(nn.LayerNorm(8), nn.GroupNorm(2, 6)),
    "activations": nn.Sequential(nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Softmax(-1), nn.Sigmoid()),
    "pooling": nn.Sequential(nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(2), nn.Tanh()),
    "attention": Attends(),
    "grouped queries": Apply(grouped),
    "transformer": nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    "recurrence": First(nn.GRU(8, 5, batch_first=True)),
    "lstm": First(nn.LSTM(8, 5, batch_first=True)),
    "reductions": Apply(lambda x: x.square().mean(0).sum() * x.std() * x.exp()),
    "moves": Apply(lambda x: torch.cat([x, x.flip(0), x[:, :2].repeat(1, 3, 1)]).roll(1).exp()),
    "einsum": Apply(lambda x: torch.einsum("bij,bkj->bik", x, x).tanh()),
    "masked": Apply(lambda x: x.masked_fill(MASK, 0).where(MASK, x).sigmoid()),
    "autocast": Apply(lambda x: F.linear(x.bfloat16(), torch.ones(3, 8).bfloat16()).float().exp()),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_tells_the_operations_that_ran(name: str) -> None:
    model, x = MODELS[name], torch.randn(2, 6, 8, requires_grad=True)
    assert read(model, x) == seen(model, x)
