"""Trainings in one of two processes that train together; run as a script, once a rank."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gradwatch import NonFiniteGradientError, NonFiniteOptions
from gradwatch.callbacks import GradWatch
from gradwatch.layers import LayerMap
from gradwatch.measure import OptimizerView
from gradwatch.sinks.record_reader import read
from gradwatch.transfer import Transfer
from tests.kit import (
    Net,
    ResumableLoader,
    SkipsByHand,
    build,
    fingerprint,
    fit,
    make_samples,
    watcher,
)

DDP: dict[str, Any] = {"strategy": "ddp", "devices": 2, "log_every_n_steps": 1}
ON_RANK_1 = 13
ACCUMULATED = {"accumulate_grad_batches": 2}


def make_own_loader(*spoil: int) -> Any:
    """Give this rank every second sample."""
    rank = int(os.environ["RANK"])
    return ResumableLoader(tuple(part[rank::2] for part in make_samples(56, spoil)))


def train(callbacks: list[Any], *spoil: int, **options: Any) -> dict[str, Any]:
    module = build(Net)
    loader = make_own_loader(*spoil)
    return fingerprint(fit(module, callbacks, loader, **DDP, **options), module)


def tell(callback: Any, sink: Any) -> dict[str, Any]:
    return {
        "findings": [finding.lines() for finding in callback.findings],
        "told": [finding.rule for finding in sink.findings],
        "records": len(sink.records),
    }


def watched(policy: Any, *spoil: int, **options: Any) -> dict[str, Any]:
    callback, sink = watcher(non_finite=NonFiniteOptions(policy=policy))
    run = train([callback], *spoil, **options)
    return {"run": run, **tell(callback, sink)}


def raised() -> dict[str, Any]:
    callback, sink = watcher()
    module = build(Net)
    try:
        fit(module, [callback], make_own_loader(ON_RANK_1), **DDP)
    except NonFiniteGradientError as error:
        weights = {name: each.detach().clone() for name, each in module.named_parameters()}
        bundle = torch.load(str(error.finding.evidence["bundle"]), weights_only=True)
        batch = bundle["batch"][0].isnan().any(dim=(1, 2, 3)).nonzero().flatten().tolist()
        told = {"error": str(error), "weights": weights, "bad_in_bundle": batch}
        return {**tell(callback, sink), **told}
    return {}


class Together(Net):
    """Adds its loss up over the ranks in each step, as a metric does."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        return loss


def collective() -> list[str]:
    """Let a step with a collective go bad on rank 1 only; give the finding's first line."""
    callback, _ = watcher()
    try:
        fit(build(Together), [callback], make_own_loader(ON_RANK_1), **DDP)
    except NonFiniteGradientError as error:
        return [str(error).partition("\n")[0]]
    return []


def one_step() -> dict[str, Any]:
    module = build(Net)
    fit(module, [], make_own_loader(ON_RANK_1), max_steps=1, **DDP)
    return dict(module.named_parameters())


def as_it_comes() -> int:
    """Train with the one line of the README; give the steps in the run record of rank 0."""
    fit(build(Net), [GradWatch()], make_own_loader(), **DDP, default_root_dir="as_it_comes")
    if os.environ["RANK"] != "0":
        return 0
    return len(read(Path("as_it_comes", "gradwatch_runs", "record.jsonl")).records)


def sharded() -> dict[str, Any]:
    """Measure sharded gradients beside the whole ones, at first exactly, then fast."""
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh)
    layers = LayerMap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    view = OptimizerView(optimizer, layers, layers.names)
    measured, whole = [], []
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(4, 7)).square().sum().backward()
        transfer = Transfer()
        view.load(transfer, weights=True)
        measured.append(view.unload(transfer.fetch(), 1.0, None).parameters.grad_norm.tolist())
        grads: list[Any] = [parameter.grad for parameter in model.parameters()]
        whole.append([float(grad.full_tensor().double().norm()) for grad in grads])
    return {"measured": measured, "whole": whole, "kinds": {type(g).__name__ for g in grads}}


SCENES: dict[str, Callable[[], Any]] = {
    "bare": partial(train, []),
    "watched": partial(watched, "raise"),
    "accumulated": partial(train, [], **ACCUMULATED),
    "accumulated and watched": partial(watched, "raise", **ACCUMULATED),
    "as it comes": as_it_comes,
    "one step": one_step,
    "by hand": partial(train, [SkipsByHand()], ON_RANK_1),
    "skipped": partial(watched, "skip", ON_RANK_1),
    "sharded": sharded,
    "raised": raised,
    "collective": collective,
}


def main(folder: Path) -> None:
    results = {name: scene() for name, scene in SCENES.items()}
    rank = torch.distributed.get_rank()
    torch.save(results, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
