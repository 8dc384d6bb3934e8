"""What a profile says is kept for the backward: the same that the memory's look says."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gradwatch
from gradwatch import MemorySink
from gradwatch.graph.places import Places
from gradwatch.memory import measure_saved
from gradwatch.roofline import RooflineOptions, profile

ONCE = RooflineOptions(warmup_steps=0, timed_steps=1, traced_steps=1)


class Block(nn.Module):
    def __init__(self, width: int = 8, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, 8)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        out = checkpoint(self.inner, x, use_reentrant=False) if self.checkpointed else self.inner(x)
        assert isinstance(out, Tensor)
        return x + out

    def inner(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 8)
        for step in x.unbind(1):
            state = self.cell(step, state)
        out: Tensor = self.head(state)
        return out


def profiled(model: nn.Module, x: Tensor) -> dict[str, float]:
    told = profile(model, x, options=ONCE).layers
    return {own.layer: own.saved_bytes for own in told if own.saved_bytes}


def looked_at(model: nn.Module, x: Tensor) -> dict[str, float]:
    places = Places(model)
    undo = places.attach()
    root = model(x).sum()
    undo()
    saved = measure_saved([root], places, [*model.parameters(), *model.buffers()])
    return {own.name: own.saved_bytes for own in saved.layers if own.saved_bytes}


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Dropout(0.5)), torch.randn(4, 8)),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.ones(2, 1, 8, 8)),
        (Recurrent(), torch.randn(3, 5, 4)),
        (nn.Sequential(Block(), Block(checkpointed=True), Block()), torch.randn(4, 8)),
    ],
    ids=["blocks", "convolution", "recurrence", "checkpointed"],
)
def test_both_looks_say_the_same_of_each_layer(model: nn.Module, x: Tensor) -> None:
    assert profiled(model, x) == looked_at(model, x)


def test_a_checkpointed_block_keeps_nothing_of_its_own() -> None:
    model = nn.Sequential(Block(), Block(checkpointed=True))
    assert not {"1.norm", "1.up", "1.down"} & set(profiled(model, torch.randn(4, 8)))


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_micro_batches_keep_what_one_of_them_keeps(micro_batches: int) -> None:
    model, sink = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)), MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch.watch(
        model, optimizer, roofline=ONCE, sinks=[sink], console=False, record=False
    ):
        for _ in range(5):
            for _ in range(micro_batches):
                model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    table = next(each for each in sink.tables if each.name == "roofline")
    at = table.columns.index("saved (MB)")
    kept = {str(row[0]): row[at] for row in table.rows}
    activation = 4 * 4 * 8 / 1e6
    assert [kept[name] for name in "012"] == [activation, activation, activation]
