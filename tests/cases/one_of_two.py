"""Train as one of two ranks, of which the second is handed a NaN; run as a script, once a rank."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from gradwatch import MemorySink, NonFiniteGradientError
from gradwatch.callbacks import GradWatch
from tests.cases.conftest import Task, make_trainer, regression, sgd, watched_options

STEPS, BAD_STEP, BAD_SAMPLE = 3, 1, 2


def make_batches(rank: int) -> list[Any]:
    generator = torch.Generator().manual_seed(rank)
    batches = [
        (torch.randn(5, 4, generator=generator), torch.randn(5, 3, generator=generator))
        for _ in range(STEPS)
    ]
    if rank == 1:
        batches[BAD_STEP][0][BAD_SAMPLE, 0] = torch.nan
    return batches


def train(rank: int, policy: str) -> dict[str, Any]:
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), regression, sgd)
    sink, error = MemorySink(), ""
    guard = GradWatch(sinks=[sink], record=False, **watched_options(policy, {}))
    trainer = make_trainer(guard, strategy="ddp", devices=2, use_distributed_sampler=False)
    data: Any = make_batches(rank)
    try:
        trainer.fit(task, DataLoader(data, batch_size=None))
    except NonFiniteGradientError as stopped:
        error = str(stopped)
    told = [finding.lines()[0] for finding in sink.findings if finding.rule == "non_finite"]
    weights = {name: each.detach().clone() for name, each in task.named_parameters()}
    return {"error": error, "told": told, "weights": weights, "steps": trainer.global_step}


if __name__ == "__main__":
    own = int(os.environ["RANK"])
    # Until both are done: the first to leave would take the meeting place along.
    seen = {policy: train(own, policy) for policy in ("skip", "raise")}
    torch.save(seen, Path(sys.argv[1]) / f"{own}.pt")
