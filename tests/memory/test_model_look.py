"""The memory story over real fits: what is saved, which gradients outlive, who keeps graphs."""

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch import MemorySink, watch
from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.memory import MemoryDelta, MemoryOptions, MemorySnapshot
from gradwatch.memory.look import ModelLook
from gradwatch.memory.phases import MIB
from gradwatch.memory.snapshot import Kind
from tests.kit import Net, build, differences, fingerprint, fit, make_half, make_loader


class FullCard:
    """A card that is nearly full, and small enough for a small model's gradients to matter."""

    kind: Kind = "accelerator"
    allocator = "native"

    def read(self) -> MemorySnapshot:
        peak = 12 * 1024
        return MemorySnapshot(peak // 2, peak, peak, total_bytes=peak + 1024)


def watched(sink: MemorySink, part: MemoryDelta) -> MonitorCallback:
    return MonitorCallback((part,), Configuration(sinks=(sink,), console=False, record=False))


@pytest.fixture(autouse=True)
def no_rest_of_others() -> None:
    """Let go of what other tests have left in circles: it is alive until someone collects it."""
    gc.collect()


class Collects(Net):
    """Keeps its losses for the end of the epoch, graph and all."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.seen.append(loss)
        return loss


def test_a_list_of_losses_is_found_while_it_grows() -> None:
    sink, module = MemorySink(), build(Collects)
    options = MemoryOptions(window_steps=5)
    fit(module, [watched(sink, MemoryDelta(options))], make_loader(64), max_steps=14)
    (finding,) = sink.findings
    assert (finding.rule, finding.step) == ("graph_kept", 10)
    assert finding.evidence["held_in"] == "<root>.seen[…]"
    assert finding.evidence["made_by"] == "nll_loss"
    assert ".detach()" in finding.remedy


def test_steps_that_are_skipped_cost_no_look_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Overflows(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss: Tensor = super().training_step(batch, batch_idx)
            return loss * (1e38 if batch_idx > 1 else 1.0)

    looks: list[None] = []
    monkeypatch.setattr(ModelLook, "count", lambda _: looks.append(None))
    part = MemoryDelta(MemoryOptions(window_steps=2))
    options: dict[str, Any] = {"max_steps": 7, "plugins": [make_half()]}
    fit(build(Overflows), [watched(MemorySink(), part)], make_loader(64), **options)
    assert part._steps == 2
    assert len(looks) == 1


def test_memory_that_grows_is_told_with_what_holds_it() -> None:
    class Grows(FullCard):
        taken = 0

        def read(self) -> MemorySnapshot:
            self.taken += MIB
            return MemorySnapshot(self.taken, 1 << 30, 1 << 30, total_bytes=1 << 40)

    sink, part = MemorySink(), MemoryDelta(MemoryOptions(window_steps=5), Grows())
    fit(build(Collects), [watched(sink, part)], make_loader(64), max_steps=8)
    (finding,) = [each for each in sink.findings if each.rule == "memory_growth"]
    assert finding.evidence["held_in"] == "<root>.seen[…]"
    assert int(finding.evidence["tensors_with_graph"]) >= 6


def failed_step() -> Exception | None:
    """Fail in a function that still holds its loss, as a notebook keeps its last error."""
    try:
        loss = nn.functional.nll_loss(torch.zeros(1, 4, requires_grad=True), torch.zeros(1).long())
        int(f"{loss.item()} is no number")
    except ValueError as error:
        return error
    return None


def test_what_was_alive_before_the_run_is_not_taken_for_its_growth() -> None:
    errors = [failed_step() for _ in range(40)]
    test_memory_that_grows_is_told_with_what_holds_it()
    assert None not in errors


@pytest.mark.parametrize(
    ("make", "options"),
    [(Net, MemoryOptions(window_steps=5)), (Collects, MemoryOptions(live_objects=False))],
    ids=["losses that are detached", "not asked for"],
)
def test_nothing_is_said_of_graphs_that_nobody_keeps(make: Any, options: MemoryOptions) -> None:
    sink = MemorySink()
    fit(build(make), [watched(sink, MemoryDelta(options))], make_loader(64), max_steps=14)
    assert sink.findings == []


def test_what_the_forward_saves_is_shown_with_the_first_step() -> None:
    sink = MemorySink()
    fit(build(Net), [watched(sink, MemoryDelta())], max_steps=4)
    (table,) = sink.tables
    assert (table.name, table.step) == ("saved", 0)
    assert {"conv", "bn", "norm", "drop"} <= {row[0] for row in table.rows}


def test_the_trainer_s_own_order_clears_gradients_late() -> None:
    sink = MemorySink()
    part = MemoryDelta(source=FullCard())
    fit(build(Net), [watched(sink, part)], max_steps=4, log_every_n_steps=1)
    held = [finding for finding in sink.findings if finding.rule == "memory_gradients_held"]
    assert [finding.step for finding in held] == [2]
    module = build(Net)
    nbytes = sum(parameter.nbytes for parameter in module.parameters())
    assert held[0].evidence["gradients_MiB"] == nbytes / MIB
    assert "between forward and backward" in held[0].cause


class ClearsEarly(Net):
    def on_train_batch_end(self, *args: Any) -> None:
        self.optimizers().zero_grad()  # type: ignore[union-attr]


class ClearsToZero(Net):
    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)


def test_gradients_that_go_with_the_update_are_not_told() -> None:
    sink = MemorySink()
    part = MemoryDelta(source=FullCard())
    fit(build(ClearsEarly), [watched(sink, part)], max_steps=4, log_every_n_steps=1)
    assert [finding.rule for finding in sink.findings] == []


def test_gradients_set_to_zero_are_told_as_such() -> None:
    sink = MemorySink()
    part = MemoryDelta(source=FullCard())
    fit(build(ClearsToZero), [watched(sink, part)], max_steps=4, log_every_n_steps=1)
    (finding,) = sink.findings
    assert finding.rule == "memory_gradients_held"
    assert "set_to_none=False" in finding.cause


@pytest.mark.parametrize(
    ("to_none", "cause"), [(True, "between forward and backward"), (False, "set_to_none=False")]
)
def test_a_plain_loop_that_clears_between_forward_and_backward_is_told_how(
    to_none: bool, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwatch.memory.part.source_in_use", FullCard)
    model = nn.Linear(36, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, console=False, log_every_n_steps=1) as watched:
        for _ in range(3):
            loss = model(torch.ones(2, 36)).mean()
            optimizer.zero_grad(set_to_none=to_none)
            loss.backward()
            optimizer.step()
    (finding,) = watched.findings
    assert finding.rule == "memory_gradients_held"
    assert cause in finding.cause


def test_training_is_the_same_to_the_bit_and_no_hook_stays() -> None:
    plain, module = build(Net), build(Net)
    without = fit(plain, max_steps=6)
    options = MemoryOptions(window_steps=2)
    beside = fit(module, [watched(MemorySink(), MemoryDelta(options))], max_steps=6)
    assert differences(fingerprint(without, plain), fingerprint(beside, module)) == []
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_a_copy_holds_no_model() -> None:
    part = MemoryDelta()
    fit(build(Net), [watched(MemorySink(), part)], max_steps=1)
    twin = copy.deepcopy(part)
    assert (twin._look, twin._stage, twin.options) == (None, None, part.options)


def test_a_model_of_one_layer_and_no_gradient_at_its_input_is_no_trouble() -> None:
    class One(Net):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Linear(36, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.only(torch.flatten(x, 1))

    sink = MemorySink()
    fit(build(One), [watched(sink, MemoryDelta())], max_steps=2)
    assert {row[0] for row in sink.tables[0].rows} == {"<loss>", "only"}
