"""The roofline in a fit: it looks once, changes no bit, and is off again."""

import copy
import pickle
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import profile as torch_profile

from gradwatch import MemorySink
from gradwatch.callbacks import RooflineMonitor
from gradwatch.callbacks.outputs import Configuration
from gradwatch.roofline import RooflineOptions
from gradwatch.roofline.told import LAYER_COLUMNS
from tests.kit import Net, build, differences, fingerprint, fit, make_half, make_loader

QUICK = RooflineOptions(warmup_steps=2, timed_steps=2, traced_steps=2)


def monitor(options: RooflineOptions = QUICK) -> tuple[RooflineMonitor, MemorySink]:
    sink = MemorySink()
    callback = RooflineMonitor(options)
    callback.configuration = Configuration(sinks=(sink,), console=False, record=False)
    return callback, sink


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.5}, {"plugins": True}],
    ids=["plain", "accumulation", "clipping", "half precision"],
)
def test_a_profiled_training_is_the_same_bits(options: dict[str, Any]) -> None:
    def train(callbacks: list[pl.Callback]) -> dict[str, Any]:
        own = {"plugins": [make_half()]} if "plugins" in options else options
        net = build(Net)
        return fingerprint(fit(net, callbacks, make_loader(80), **own), net)

    callback, _ = monitor()
    assert differences(train([]), train([callback])) == []
    assert callback.profile is not None


def test_it_tells_tables_once_and_keeps_the_profile() -> None:
    callback, sink = monitor()
    fit(build(Net), [callback], make_loader(80))
    assert [table.name for table in sink.tables] == ["roofline", "ceilings", "kernels", "phases"]
    layers = sink.tables[0]
    assert layers.columns == LAYER_COLUMNS
    assert {row[0] for row in layers.rows} >= {"conv", "bn", "act", "hidden", "norm", "<loss>"}
    assert {row[1] for row in layers.rows} <= {"launch-bound", "waiting"}
    units = [row[2] for row in sink.tables[1].rows]
    # One rate for each dtype that was ever asked for on this machine.
    assert (units[0], set(units[1:-1]), units[-1]) == ("GB/s", {"GFLOP/s"}, "µs")
    assert callback.profile is not None
    assert callback.profile.steps == 2


def test_every_phase_of_a_step_is_timed() -> None:
    callback, _ = monitor()
    fit(build(Net), [callback], make_loader(80))
    assert callback.profile is not None
    assert set(callback.profile.phases) == {
        "forward", "backward", "optimizer", "data_wait", "host_to_device", "other",
    }  # fmt: skip
    assert all(seconds > 0 for seconds in callback.profile.phases.values())


class Slow(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        sum(range(100_000))
        return torch.ones(1, 6, 6), torch.tensor(index % 3)


def test_waiting_for_a_slow_loader_is_told_as_such() -> None:
    callback, sink = monitor()
    fit(build(Net), [callback], torch.utils.data.DataLoader(Slow(), batch_size=6))
    assert callback.profile is not None
    phases = callback.profile.phases
    assert max(phases, key=lambda name: phases[name]) == "data_wait"
    told = next(finding for finding in sink.findings if finding.rule == "data_starved")
    assert told.evidence["workers"] == 0


def attached(net: pl.LightningModule) -> int:
    return sum(len(own._forward_hooks) + len(own._forward_pre_hooks) for own in net.modules())


class Sees(pl.Callback):
    """Look at the model after each batch."""

    def __init__(self) -> None:
        self.hooks: list[int] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        self.hooks.append(attached(module))


def test_hooks_are_there_for_the_steps_that_need_them_only() -> None:
    sees, (callback, _) = Sees(), monitor()
    fit(build(Net), [callback, sees], make_loader(80), max_epochs=1)
    assert [hooks > 0 for hooks in sees.hooks[:9]] == [False] * 4 + [True] * 3 + [False] * 2


class Breaks(pl.Callback):
    def __init__(self, batch: int) -> None:
        self.batch = batch

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        if trainer.global_step == self.batch:
            raise RuntimeError("stopped by hand")


@pytest.mark.parametrize("batch", [3, 5, 6], ids=["timing", "tracing", "counting"])
def test_after_an_exception_nothing_is_left(batch: int) -> None:
    net, (callback, _) = build(Net), monitor()
    with pytest.raises(RuntimeError, match="stopped by hand"):
        fit(net, [callback, Breaks(batch)], make_loader(80))
    assert attached(net) == 0
    assert not torch._C._autograd._profiler_enabled()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


@pytest.mark.parametrize("steps", [4, 19])
def test_a_fit_that_is_too_short_says_so(steps: int) -> None:
    callback, sink = monitor(RooflineOptions())
    fit(build(Net), [callback], make_loader(4 * steps), max_epochs=1)
    (told,) = sink.findings
    assert told.summary == f"the fit ended after {steps} steps, before the profile was done"
    assert told.evidence == {"steps needed": 20}
    assert callback.profile is None


def test_a_second_fit_is_profiled_anew() -> None:
    callback, sink = monitor()
    for _ in range(2):
        fit(build(Net), [callback], make_loader(80))
    assert len(sink.tables) == 8


def test_a_fit_inside_another_profiler_is_told_what_is_missing() -> None:
    callback, sink = monitor()
    with torch_profile() as theirs:
        fit(build(Net), [callback], make_loader(80))
    told = sink.findings[0]
    assert (told.rule, told.severity) == ("roofline", "info")
    assert "another profiler was recording" in told.summary
    assert len(theirs.events() or ()) > 0


class TwoOptimizers(pl.LightningModule):
    """What a GAN does: two forwards, backwards and updates in one training step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = nn.Linear(36, 3), nn.Linear(36, 3)
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        for layer, optimizer in zip((self.first, self.second), self.optimizers(), strict=True):
            loss = F.cross_entropy(layer(x.flatten(1)), y)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.losses.append(loss.detach())

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(own.parameters(), lr=0.1) for own in (self.first, self.second)]


def test_both_halves_of_a_manual_step_are_counted() -> None:
    net, (callback, _) = build(TwoOptimizers), monitor()
    fit(net, [callback], make_loader(80))
    assert callback.profile is not None
    flops = {own.layer: own.flops for own in callback.profile.layers}
    assert flops["first"] == flops["second"] > 0


class Copies(pl.Callback):
    """Copy and pickle the callbacks at the beginning of each batch."""

    def __init__(self, watched: RooflineMonitor) -> None:
        self.watched = watched
        self.sizes: list[int] = []

    def on_train_batch_start(self, *args: Any) -> None:
        copy.deepcopy(self.watched)
        self.sizes.append(len(pickle.dumps(self.watched)))


def test_the_callback_copies_and_pickles_without_its_model_at_any_time() -> None:
    callback, _ = monitor()
    callback.configuration = Configuration(console=False, record=False)
    copies = Copies(callback)
    fit(build(Net), [callback, copies], make_loader(80), max_epochs=1)
    twin = pickle.loads(pickle.dumps(callback))  # noqa: S301
    assert twin.profile == callback.profile
    assert twin._roofline._stage is None
    assert callback._roofline._stage is None
    assert len(copies.sizes) == 20


def test_layers_have_the_names_the_user_gave_them() -> None:
    class Outer(Net):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = nn.utils.parametrizations.weight_norm(self.hidden)

    callback, _ = monitor()
    fit(build(Outer), [callback], make_loader(80))
    assert callback.profile is not None
    names = {own.layer for own in callback.profile.layers}
    assert "hidden" in names
    assert not any("parametrizations" in name for name in names)
