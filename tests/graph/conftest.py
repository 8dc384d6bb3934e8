"""A look at the graph of one training step, the way a plain loop would have it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn

from gradwatch import Finding, MemorySink
from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.graph import Graph, GraphOptions, GraphWatch, Surroundings, walk
from gradwatch.graph.places import Places, next_number
from gradwatch.layers import LayerMap
from gradwatch.parts import Part
from gradwatch.tables import Table
from tests.kit import fit


class Told(NamedTuple):
    """What a fit told.

    Attributes:
        findings: Findings of the look at the graph.
        tables: Tables.
        trainer: The Trainer.
    """

    findings: list[Finding]
    tables: list[Table]
    trainer: pl.Trainer | None

    @property
    def rules(self) -> list[str]:
        return [finding.rule for finding in self.findings]


def look(model: nn.Module, loss: Callable[[], Tensor], most_nodes: int = 15_000) -> Graph:
    """Run a forward with the hooks on, and walk what it leaves."""
    places = Places(model)
    undo, since = places.attach(), next_number()
    root = loss()
    undo()
    names = LayerMap(model).parameter_names
    return walk([root], Surroundings(names, places.layer_of, since, most_nodes))


def callback(sink: MemorySink, *parts: Part) -> MonitorCallback:
    return MonitorCallback(parts, Configuration(sinks=(sink,), console=False, record=False))


@pytest.fixture
def tell() -> Callable[..., Told]:
    """Fit a module for a few steps under the look at the graph."""

    def run(
        module: pl.LightningModule,
        options: GraphOptions | None = None,
        *,
        beside_flow: bool = False,
        more: Sequence[Part] = (),
        raises: type[Exception] | None = None,
        **trainer: Any,
    ) -> Told:
        sink = MemorySink()
        watch = callback(sink, GraphWatch(options, beside_flow=beside_flow), *more)
        made = None
        arguments = {"max_steps": 4, "log_every_n_steps": 1, **trainer}
        if raises is None:
            made = fit(module, [watch], **arguments)
        else:
            with pytest.raises(raises):
                fit(module, [watch], **arguments)
        return Told(sink.findings, sink.tables, made)

    return run


class Plain(pl.LightningModule):
    """Whatever network it is given, trained on the kit's images."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self.net(batch[0].flatten(1)), batch[1])
        self.losses.append(loss.detach().clone())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
