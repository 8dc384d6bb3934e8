"""What is not tried with several ranks, in one of two processes; run as a script, once a rank."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradwatch
from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from tests.fused.lab import QUICK, Offers, quick
from tests.kit import Calm, ResumableLoader, build, fit, make_samples

RANK = int(os.environ.get("RANK", "0"))
OPTIONS = {**QUICK, "mode": "force", "after_steps": 2, "channels_last": True}


class Deep(Calm):
    """Two convolutions, of which the second's layout matters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv: Any = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3))
        del self.bn  # which Calm does not use, and two processes will not have it so


def data_parallel(*callbacks: Any) -> list[Any]:
    module = build(Deep)
    own = ResumableLoader(tuple(part[RANK::2] for part in make_samples(56)))
    fit(module, callbacks, own, strategy="ddp", devices=2, max_epochs=1)
    return [each.detach().clone() for each in module.parameters()]


def laid_out() -> dict[str, Any]:
    sink = MemorySink()
    options = FusedBackwardOptions(**{**OPTIONS, "providers": ()})
    weights = data_parallel(FusedBackward(options, sinks=[sink]))
    rows = [(row[2], row[4], row[5]) for table in sink.tables for row in table.rows]
    return {"rows": rows, "weights": weights, "stock": data_parallel()}


@contextmanager
def grouped() -> Iterator[Any]:
    """Join the other process, where Lightning has not done so."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def sharded() -> dict[str, Any]:
    sink, ends = MemorySink(), []
    options = FusedBackwardOptions(**{**OPTIONS, "providers": (Offers(nn.LayerNorm, quick),)})
    with grouped() as mesh:
        for fused in (options, False):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))
            fully_shard(model, mesh=mesh)
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            watched = gradwatch.watch(model, optimizer, fused=fused, console=False, sinks=[sink])
            generator = torch.Generator().manual_seed(RANK)
            with watched:
                for _ in range(5):
                    optimizer.zero_grad()
                    model(torch.randn(4, 8, generator=generator)).square().mean().backward()
                    optimizer.step()
            whole = [each.full_tensor() for each in model.parameters()]  # type: ignore[attr-defined]
            ends.append([each.detach().clone() for each in whole])
    told = [each.summary for each in sink.findings if each.rule == "fused_backward"]
    others = [each.rule for each in sink.findings if each.rule != "fused_backward"]
    return {"told": told, "others": others, "weights": ends[0], "stock": ends[1]}


def main(folder: Path) -> None:
    results = {"laid out": laid_out(), "sharded": sharded()}
    torch.save(results, folder / f"{RANK}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
