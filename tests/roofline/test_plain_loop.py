"""The roofline in a loop of one's own."""

import torch
from torch import nn

import gradwatch
from gradwatch import MemorySink
from gradwatch.roofline import RooflineOptions
from gradwatch.tables import Table

QUICK = RooflineOptions(warmup_steps=1, timed_steps=2, traced_steps=2)


def train(steps: int, sink: MemorySink | None, micro_batches: int = 1) -> dict[str, torch.Tensor]:
    """Train a little, watched or not, and give the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    watched = (
        None
        if sink is None
        else gradwatch.watch(
            model, optimizer, roofline=QUICK, sinks=[sink], console=False, record=False
        )
    )
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    if watched is not None:
        watched.close()
    return dict(model.state_dict())


def tables(sink: MemorySink) -> dict[str, Table]:
    return {table.name: table for table in sink.tables}


def test_a_plain_loop_is_profiled_layer_by_layer() -> None:
    sink = MemorySink()
    train(10, sink)
    told = tables(sink)
    assert {row[0] for row in told["roofline"].rows} >= {"0", "1", "2", "3"}
    assert {row[0] for row in told["phases"].rows} >= {"forward", "backward", "optimizer"}


def test_its_weights_are_the_same_bits() -> None:
    plain, profiled = train(10, None), train(10, MemorySink())
    assert all(torch.equal(plain[name], profiled[name]) for name in plain)


def test_micro_batches_of_one_update_are_one_step() -> None:
    once, twice = MemorySink(), MemorySink()
    train(10, once)
    train(10, twice, micro_batches=2)
    kernels = [
        {str(row[0]): row for row in tables(sink)["roofline"].rows}["0"] for sink in (once, twice)
    ]
    at = tables(once)["roofline"].columns.index("moved (MB)")
    assert float(kernels[1][at] or 0) > 1.8 * float(kernels[0][at] or 0)
