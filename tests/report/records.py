"""Run records of every kind: small ones through the sink, a long one written line by line."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch import Coverage, Finding, FlowReading, StepRecord
from gradwatch.sinks import RunRecordSink
from gradwatch.tables import Table

LAYERS = ("embed", "blocks.0", "blocks.1", "head")
RECORD = Path("logs", "gradwatch_runs", "record.jsonl")


def flow(norms: Sequence[float], layers: tuple[str, ...] = LAYERS) -> FlowReading:
    values = np.asarray(norms, dtype=np.float64)
    return FlowReading(
        layers=layers,
        grad_norm=values,
        weight_norm=np.ones(len(layers)),
        has_grad=~np.isnan(values),
        frozen=np.zeros(len(layers), dtype=np.bool_),
    )


def step(number: int, norms: Sequence[float] = (4, 3, 2, 1), **scalars: float) -> StepRecord:
    told = {key.replace("__", "/"): value for key, value in scalars.items()}
    layers = LAYERS if len(norms) == len(LAYERS) else tuple(f"layer.{i}" for i in range(len(norms)))
    return StepRecord(step=number, log_step=number, scalars=told, flow=flow(norms, layers))


def fault(number: int = 3, layer: str = "blocks.1", **fields: Any) -> Finding:
    known = {"rule": "vanishing", "severity": "warning", "summary": "the gradient fades"}
    return Finding(layer=layer, step=number, **{**known, **fields})


def write(
    told: Iterable[StepRecord | Finding | Table],
    path: Path = RECORD,
    *,
    ends: bool = True,
    coverage: Sequence[Coverage] | None = (Coverage(layer="embed", state="hooked"),),
    config: dict[str, Any] | None = None,
) -> Path:
    """Append a run to a record, as a session does; one that does not end leaves no footer.

    Without a coverage the run before goes on.
    """
    sink = RunRecordSink(path, config=config)
    if coverage is not None:
        sink.start(coverage)
    for one in told:
        if isinstance(one, StepRecord):
            sink.record(one)
        elif isinstance(one, Finding):
            sink.finding(one)
        else:
            sink.table(one)
    sink.close()
    if not ends:
        _tear_footer(path)
    return path


def _tear_footer(path: Path) -> None:
    *lines, _ = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines))


def write_long(path: Path, layers: int = 400, steps: int = 10_000, kinds: int = 300) -> None:
    """Write a run whose norms wander, with everything there is; one step holds an Inf."""
    draw = np.random.default_rng(0)
    names = [f"model.encoder.layers.{i // 8}.attention.part{i % 8}" for i in range(layers)]
    level = np.linspace(-3, 0, layers)
    flows = [_dump_flow(10 ** (level + draw.normal(0, 0.3, layers))) for _ in range(kinds)]
    coverage = [{"layer": name, "state": "hooked", "reason": ""} for name in names]
    header = {"kind": "header", "format": 1, "coverage": coverage, "config": {}, "versions": {}}
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        for line in (header, {"kind": "layers", "id": 0, "names": names}):
            file.write(f"{json.dumps(line)}\n")
        for number in range(steps):
            marks = ',"marks":{"/flow/grad_norm/7":"inf"}' if number == steps // 2 else ""
            file.write(
                f'{{"kind":"record","step":{number},"log_step":{number},"layers":0,'
                f'"scalars":{json.dumps(_scalars(draw))},"flow":{flows[number % kinds]}{marks}}}\n'
            )
    write(
        [*_tables(names), *(fault(i, names[i]) for i in range(0, layers, 5))], path, coverage=None
    )


def _dump_flow(norms: Any) -> str:
    values = [float(f"{norm:.5g}") for norm in norms]
    packed = {"grad_norm": values, "weight_norm": values, "no_grad": [], "frozen": []}
    packed["update_ratio"] = [float(f"{norm / 1000:.4g}") for norm in norms]
    return json.dumps(packed, separators=(",", ":"))


def _scalars(draw: np.random.Generator) -> dict[str, float]:
    norm, rate, memory = draw.lognormal(), draw.lognormal(-7), 500 + draw.normal()
    return {
        "grad/norm": norm,
        "grad/norm_clipped": min(norm, 1.0),
        "grad/clip_rate": 0.5,
        "grad/loss_scale": 65536.0,
        "grad/skipped": 0.0,
        "lr/snr": draw.lognormal(2),
        "lr/factor": draw.lognormal(),
        "lr/effective": rate,
        "mem/process_MiB": memory,
        "mem/process_forward_MiB": draw.normal(),
        "mem/process_backward_MiB": draw.normal(),
        "mem/process_step_MiB": draw.normal(),
        "mem/process_peak_MiB": memory + 1,
        "mem/allocated_MiB": memory,
        "mem/allocated_forward_MiB": 300 + draw.normal(),
        "mem/allocated_backward_MiB": -200 + draw.normal(),
        "mem/allocated_step_MiB": -100 + draw.normal(),
        "mem/peak_MiB": memory + 400,
    }


def _tables(names: Sequence[str]) -> list[Table]:
    draw = np.random.default_rng(1)
    columns = ("layer", "time (ms)", "intensity (FLOP/B)", "achieved (GFLOP/s)", "verdict")
    rows = tuple((name, *10 ** draw.uniform(-1, 2, 3), "memory-bound") for name in names)
    limits = (("bandwidth", 12.3, "GB/s"), ("float32", 150.0, "GFLOP/s"))
    links = tuple((3 * i, names[-i - 1], "addmm, gelu", "") for i in range(min(40, len(names))))
    chain = ("depth", "layer", "operation", "mark")
    return [
        Table(name="roofline", title="Layers", step=9, columns=columns, rows=rows),
        Table(
            name="ceilings", title="Machine", step=9, columns=("name", "value", "unit"), rows=limits
        ),
        Table(name="graph", title="The longest way", step=9, columns=chain, rows=links),
    ]
