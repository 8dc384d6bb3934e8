"""What telling costs: each sink's share of a step, and the bytes W&B is sent.

Run: python tests/benchmarks/sinks.py [--layers 2000] [--steps 10000] [--every 50]

Records as a run makes them (all four families, totals, memory), handed to the sinks a Trainer with
a W&B logger has; the run is offline, so what is counted is what a sync would send. Time is that of
this process. What measuring a step costs is in tests/benchmarks/overhead.py.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import wandb
from lightning.pytorch.loggers import WandbLogger
from rich.progress import track

from gradwatch.findings import Finding
from gradwatch.readings import FlowReading, StepRecord
from gradwatch.sinks import ConsoleSink, LoggerSink, PictureSink, RunRecordSink, Sink, WandbSink

SCALARS = ("grad/norm", "grad/norm_clipped", "grad/clip_rate", "grad/non_finite", "grad/skipped")
MEMORY = ("", "_forward", "_backward", "_step", "_peak")
BLOCK = 12


def make_records(layers: int, steps: int, every: int) -> Iterator[StepRecord]:
    """Give the records of a run whose norms drift and fade towards the first layers."""
    draw = np.random.default_rng(0)
    names = tuple(f"model.layers.{i // BLOCK}.part{i % BLOCK}.proj" for i in range(layers))
    depth = np.linspace(-3, 0, layers)
    for step in range(every - 1, steps, every):
        norms = 10 ** (depth + draw.normal(0, 0.2, layers) - step / steps)
        flow = FlowReading(
            layers=names,
            grad_norm=norms,
            weight_norm=np.full(layers, 3.0),
            has_grad=np.ones(layers, dtype=bool),
            frozen=np.zeros(layers, dtype=bool),
            update_ratio=norms * 1e-3,
            zero_fraction=np.zeros(layers),
            act_grad=norms * 2,
        )
        scalars = {key: float(draw.random()) for key in SCALARS}
        scalars |= {f"mem/process{part}_MiB": 512.0 + draw.random() for part in MEMORY}
        yield StepRecord(step=step, log_step=step, scalars=scalars, flow=flow)


def make_finding(number: int, record: StepRecord) -> Finding:
    """Give a finding such as a rule tells, of another layer each time."""
    layers = record.flow.layers if record.flow is not None else ("model",)
    return Finding(
        rule="vanishing",
        layer=layers[number % len(layers)],
        severity="warning",
        step=record.step,
        summary="the gradient is a millionth of the next layer's",
        evidence={"gradient norm": 1e-8, "next layer's": 1e-2},
        cause="saturated activations follow",
        remedy="normalise, or use another activation",
    )


class Timed:
    """Add up what a sink takes, and the longest single call."""

    def __init__(self, name: str, sink: Sink) -> None:
        """Take the sink."""
        self.name, self.sink = name, sink
        self.seconds = self.longest = 0.0

    def call(self, action: Callable[[Sink], object]) -> None:
        """Call it and take the time."""
        began = time.process_time()
        action(self.sink)
        taken = time.process_time() - began
        self.seconds += taken
        self.longest = max(self.longest, taken)


def make_sinks(folder: Path) -> tuple[list[Timed], WandbLogger]:
    """Make what a Trainer with a W&B logger gets."""
    logger = WandbLogger(project="benchmark", mode="offline", save_dir=folder)
    run: Any = logger.experiment
    plain = LoggerSink([logger])
    rich = WandbSink(run, pictures=False, fuse=plain.fuse(logger))
    made: dict[str, Sink] = {
        "pictures": PictureSink([(rich.hang, plain.fuse(logger))]),
        "scalars": plain,
        "alerts, tables, summary": rich,
        "console": ConsoleSink(lambda _: None),
        "run record": RunRecordSink(folder / "record.jsonl"),
    }
    return [Timed(name, sink) for name, sink in made.items()], logger


def sent_bytes(folder: Path) -> tuple[int, int]:
    """Give the bytes of W&B's log and of the files beside it."""
    log = sum(path.stat().st_size for path in folder.rglob("*.wandb"))
    media = sum(path.stat().st_size for path in folder.rglob("media/**/*") if path.is_file())
    return log, media


def report(sinks: list[Timed], folder: Path, steps: int, records: int) -> None:
    """Print the table."""
    print(f"{'sink':<26}{'ms/step':>9}{'ms/record':>11}{'longest ms':>12}")
    for timed in sinks:
        per_step, per_record = (timed.seconds * 1e3 / count for count in (steps, records))
        longest = timed.longest * 1e3
        print(f"{timed.name:<26}{per_step:>9.3f}{per_record:>11.2f}{longest:>12.1f}")
    total = sum(timed.seconds for timed in sinks) * 1e3
    print(f"{'all':<26}{total / steps:>9.3f}{total / records:>11.2f}")
    log, media = sent_bytes(folder)
    kept = (folder / "record.jsonl").stat().st_size
    print(f"W&B log    {log / steps:>9,.0f} bytes a step, {log / records:>9,.0f} a record")
    print(f"W&B files  {media / steps:>9,.0f} bytes a step (pictures, tables)")
    print(f"run record {kept / steps:>9,.0f} bytes a step, {kept / records:>9,.0f} a record")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--layers", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=50, help="Trainer(log_every_n_steps=…)")
    parser.add_argument("--findings", type=int, default=1, help="findings, spread over the run")
    args = parser.parse_args()
    os.environ["WANDB_SILENT"] = "true"
    folder = Path(tempfile.mkdtemp())
    sinks, _ = make_sinks(folder)
    records = list(make_records(args.layers, args.steps, args.every))
    told = set(np.linspace(0, len(records) - 1, args.findings + 2, dtype=int)[1:-1].tolist())
    for number, record in enumerate(track(records, description="logging")):
        for timed in sinks:
            if number in told:
                finding = make_finding(number, record)
                timed.call(lambda sink, finding=finding: sink.finding(finding))  # type: ignore[misc]
            timed.call(lambda sink, record=record: sink.record(record))  # type: ignore[misc]
    for timed in sinks:
        timed.call(lambda sink: sink.close())
    wandb.finish()
    print(f"{args.layers:,} layers, {args.steps:,} steps, recorded every {args.every}")
    report(sinks, folder, args.steps, len(records))


if __name__ == "__main__":
    main()
