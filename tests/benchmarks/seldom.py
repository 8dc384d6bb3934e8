"""What is done once or seldom: graph walk, look at live objects, pictures, profile, report.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.seldom graph live pictures profile report

Processor time of this process, so that other work on the machine counts for little. `report`
writes a run record of 120 MB to a temporary folder.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from gradwatch.graph import Surroundings, walk
from gradwatch.graph.places import Places
from gradwatch.history import History
from gradwatch.layers import LayerMap
from gradwatch.memory.live import census
from gradwatch.pictures import gallery, heatmap, profile
from gradwatch.report import write_report
from gradwatch.roofline import RooflineOptions
from gradwatch.roofline import profile as profile_layers
from gradwatch.sinks import RunRecordSink
from tests.benchmarks.sinks import make_finding, make_records

ROUNDS = 5
OBJECTS = 460_000
LAYERS = (12, 75, 400, 2000)


def seconds(action: Callable[[], object]) -> float:
    """Give the processor time an action takes."""
    began = time.process_time()
    action()
    return time.process_time() - began


def usual(action: Callable[[], object]) -> float:
    """Give the median of a few times."""
    return median(seconds(action) for _ in range(ROUNDS))


def attached(places: Places) -> None:
    """Set the hooks and take them off."""
    places.attach()()


def graph() -> None:
    """Walk the graph of a chain of layers, with the hooks that say whose each node is."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(300)))
    modules, places = len(list(model.modules())), Places(model)
    attach = usual(partial(attached, places))
    undo = places.attach()
    loss = model(torch.randn(2, 8)).sum()
    places.paused = True
    around = Surroundings(LayerMap(model).parameter_names, places.layer_of)
    nodes = len(walk([loss], around).nodes)
    walked = usual(lambda: walk([loss], around))
    undo()
    print(f"hooks   {attach / modules * 1e6:8.0f} µs a module, set and taken off ({modules})")
    print(f"walk    {walked / nodes * 1e6:8.0f} µs a node ({nodes})")


def live() -> None:
    """Look through many objects for tensors with a graph behind them."""
    held: list[Any] = [[number] for number in range(OBJECTS)]
    weight = torch.ones(3, requires_grad=True)
    kept = [weight.exp() for _ in range(100)]
    took = usual(census)
    print(f"live    {took:8.3f} s with {len(held):,} objects more than usual, {len(kept)} of them")


def pictures() -> None:
    """Take in records and draw them, for models of few and of many layers."""
    print(f"{'layers':>7}{'a record':>10}{'heatmap':>10}{'profile':>10}{'all':>10}{'PNG, kB':>10}")
    for layers in LAYERS:
        draw(layers)


def draw(layers: int) -> None:
    """Print the row of one model."""
    history, records = History(), list(make_records(layers, 400, 1))
    taken = sum(seconds(partial(history.add, each)) for each in records) / len(records)
    times = [taken, *(usual(partial(each, history)) for each in (heatmap, profile, gallery))]
    drawn = gallery(history)
    sizes = sorted(png_bytes(each.image) / 1e3 for each in drawn)
    told = "".join(f"{took * 1e3:>7.1f} ms" for took in times)
    print(f"{layers:>7}{told}{sizes[0]:>6.0f} to {sizes[-1]:.0f} of {len(drawn)}")


def png_bytes(image: Any) -> int:
    """Give the size of an image as a file."""
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        image.save(file.name)
        return Path(file.name).stat().st_size


def profiled() -> None:
    """Profile a model of 201 modules, beside the same steps without."""
    blocks = (
        nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))
        for _ in range(40)
    )
    model = nn.Sequential(*blocks)
    optimizer, batch = torch.optim.AdamW(model.parameters()), torch.randn(256, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    bare, chosen = usual(step), RooflineOptions()
    steps = chosen.warmup_steps + chosen.timed_steps + chosen.traced_steps + 1
    profile_layers(model, batch, optimizer=optimizer)
    whole = seconds(lambda: profile_layers(model, batch, optimizer=optimizer))
    print(
        f"profile {whole - steps * bare:8.2f} s more than its {steps} steps of {bare * 1e3:.0f} ms"
    )


def report() -> None:
    """Write the report of a long run of many layers with 80 findings."""
    folder = Path(tempfile.mkdtemp())
    sink = RunRecordSink(folder / "record.jsonl")
    sink.start(())
    for number, record in enumerate(make_records(400, 10_000, 1)):
        sink.record(record)
        if number % 125 == 0:
            sink.finding(make_finding(number, record))
    sink.close()
    made: list[Path] = []
    took = seconds(lambda: made.append(write_report(folder)))
    size = (folder / "record.jsonl").stat().st_size
    page = made[0].stat().st_size
    print(f"report  {took:8.1f} s for a record of {size / 1e6:.0f} MB; {page / 1e6:.2f} MB")


PARTS: dict[str, Callable[[], None]] = {
    "graph": graph, "live": live, "pictures": pictures, "profile": profiled, "report": report,
}  # fmt: skip


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    for name in parser.parse_args().parts:
        PARTS[name]()


if __name__ == "__main__":
    main()
