"""The memory story on a card: each rule provoked with the allocator's own books."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn

from gradwatch import MemorySink
from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.findings import Finding
from gradwatch.memory import MemoryDelta, MemoryOptions
from gradwatch.parts import Stage
from tests.kit import fit, make_loader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

WIDTH = 1024
ROOM = 8 << 30
Wrong = Callable[[Any, Tensor], None]


@pytest.fixture(autouse=True)
def _fresh_books() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


class Wide(nn.Module):
    """Some 64 MiB a block: enough to stand out from the allocator's rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(36, WIDTH)
        blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x.flatten(1).repeat(512, 1))))


class Module(pl.LightningModule):
    """Trains it, and does something wrong on the way."""

    def __init__(self, wrong: Wrong | None) -> None:
        super().__init__()
        self.net, self.wrong = Wide(), wrong
        self.kept: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        out = self.net(batch[0])
        if self.wrong is not None:
            self.wrong(self, out)
        return nn.functional.cross_entropy(out, batch[1].repeat(512))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def run(options: MemoryOptions, wrong: Wrong | None = None, steps: int = 8) -> list[Finding]:
    sink = MemorySink()
    callback = MonitorCallback(
        (MemoryDelta(options),), Configuration(sinks=(sink,), console=False, record=False)
    )
    fit(
        Module(wrong),
        [callback],
        make_loader(64),
        max_steps=steps,
        log_every_n_steps=1,
        accelerator="gpu",
        devices=1,
    )
    return sink.findings


def tiny(**options: Any) -> MemoryOptions:
    """Judge as if the card were small."""
    return MemoryOptions(window_steps=3, growth_MiB=1.0, full=1e-6, **options)


def keep_graph(owner: Any, out: Tensor) -> None:
    # A forward of its own: what the backward passes through is let go by it.
    owner.kept.append(owner.net(torch.ones(4, 36, device=out.device)))


def test_graphs_that_are_kept_are_told_by_the_books_and_by_who_holds_them() -> None:
    rules = {finding.rule: finding for finding in run(tiny(), keep_graph)}
    assert {"memory_growth", "graph_kept"} <= set(rules)
    assert str(rules["graph_kept"].evidence["held_in"]).endswith("kept[…]")


def test_activations_are_told_with_the_blocks_to_checkpoint() -> None:
    rules = {finding.rule: finding for finding in run(tiny(activations=0.2))}
    finding = rules["memory_activations"]
    assert "net.blocks" in str(finding.evidence["checkpoint_first_MiB"])
    assert float(finding.evidence["forward_MiB"]) > 0


def test_temporaries_of_the_forward_are_told() -> None:
    def spike(owner: Any, out: Tensor) -> None:
        with torch.no_grad():
            torch.empty(1 << 28, device=out.device).zero_()

    rules = {finding.rule: finding for finding in run(tiny(), spike)}
    assert rules["memory_temporaries"].evidence["phase"] == "forward"


def test_gradients_that_the_trainer_clears_late_are_told() -> None:
    rules = {finding.rule for finding in run(tiny(held=1e-3))}
    assert "memory_gradients_held" in rules


def test_fragmented_memory_is_told() -> None:
    holes: list[Tensor] = []

    def fragment(owner: Any, out: Tensor) -> None:
        if not holes:
            blocks = [torch.empty(6 << 18, device=out.device) for _ in range(256)]
            holes.extend(blocks[::2])

    options = tiny(fragmentation=0.05, fragmented_MiB=64.0)
    assert "memory_fragmentation" in {finding.rule for finding in run(options, fragment)}


def test_a_full_device_is_told_by_its_retries() -> None:
    total = torch.cuda.get_device_properties().total_memory

    def fill(owner: Any, out: Tensor) -> None:
        torch.cuda.empty_cache()
        # The block that is cached after the first is of no use to the second, and both do not fit.
        for size in (ROOM // 2, ROOM * 3 // 4):
            torch.empty(size, dtype=torch.uint8, device=out.device)

    torch.cuda.set_per_process_memory_fraction(min(1.0, ROOM / total))
    try:
        rules = {finding.rule for finding in run(tiny(), fill)}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "memory_retries" in rules


def test_reading_memory_and_the_model_waits_for_nothing() -> None:
    torch.cuda.synchronize()
    net = Wide().cuda()
    part = MemoryDelta()
    part.open(Stage(net, lambda _: None, lambda _: None))
    x = torch.randn(4, 36, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        part.border("before_forward")
        loss = net(x).square().mean()
        part.border("after_forward")
        part.before_backward([loss])
        loss.backward()
        part.border("after_backward")
        part.border("after_step")
    finally:
        torch.cuda.set_sync_debug_mode("default")
