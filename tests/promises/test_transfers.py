"""At most one wait for the device per optimizer step, whichever callbacks are attached."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import gradwatch
from gradwatch import AdaptiveLearningRateOptions
from gradwatch.callbacks import (
    AdaptiveLearningRate,
    GradientFlowMonitor,
    GradWatch,
    MemoryDeltaMonitor,
    NonFiniteMonitor,
)
from gradwatch.transfer import Transfer
from tests.kit import Net, ResumableLoader, build, fit, make_half, make_samples, watcher

HERE = Path(gradwatch.__file__).parent
OURS = (str(HERE), str(HERE.parent / "callbacks"))
TORCH = str(Path(torch.__file__).parent)
READS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")
WAITING = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2"}
MONITORS = (GradientFlowMonitor, NonFiniteMonitor, AdaptiveLearningRate, MemoryDeltaMonitor)


def place() -> str:
    """Name the innermost line outside torch and this file."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename.startswith(TORCH) or frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def is_ours() -> bool:
    return place().startswith(OURS)


class Waits:
    """Count waits by gradwatch: calls that read a tensor, and operations that must read one."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self._inside = False

    @property
    def count(self) -> int:
        return len(self.places)

    def called(self, inner: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return inner(tensor, *args, **kwargs)
        self._inside = True
        try:
            result = inner(tensor, *args, **kwargs)
        finally:
            self._inside = False
        same = isinstance(result, Tensor) and inner.__name__ == "to"
        if is_ours() and not (same and result.device == tensor.device):
            self.places.append(place())
        return result

    def dispatched(self, name: str) -> None:
        if name in WAITING and not self._inside and is_ours():
            self.places.append(place())


class Dispatched(TorchDispatchMode):
    def __init__(self, waits: Waits) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits = waits

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.waits.dispatched(func._schema.name.partition("::")[2])
        return func(*args, **(kwargs or {}))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    counted = Waits()

    def patched(inner: Callable[..., Any]) -> Callable[..., Any]:
        return lambda tensor, *args, **kwargs: counted.called(inner, tensor, *args, **kwargs)

    for name in (*READS, "to"):
        monkeypatch.setattr(Tensor, name, patched(getattr(Tensor, name)))
    with Dispatched(counted):
        yield counted


class Steps(pl.Callback):
    """Note, after gradwatch has had its turn, how often it has waited so far."""

    def __init__(self, waits: Waits) -> None:
        self.waits, self.marks = waits, [0]

    def on_train_start(self, *args: Any) -> None:
        self.marks = [self.waits.count]

    def on_before_optimizer_step(self, *args: Any) -> None:
        self.marks.append(self.waits.count)

    def on_train_batch_end(self, *args: Any) -> None:
        assert self.waits.count == self.marks[-1]

    def per_step(self) -> list[int]:
        return [after - before for before, after in zip(self.marks, self.marks[1:], strict=False)]


def count(waits: Waits, module: Any, callbacks: Sequence[Any], **options: Any) -> list[int]:
    """Train and give the waits of each step; the flush at the end may take one more."""
    steps = Steps(waits)
    fit(module, [*callbacks, steps], **{"log_every_n_steps": 1, **options})
    assert waits.count - steps.marks[-1] <= 1
    return steps.per_step()


SUBSETS = [some for size in range(1, 5) for some in combinations(MONITORS, size)]


@pytest.mark.parametrize("some", SUBSETS, ids=lambda some: "+".join(c.__name__ for c in some))
def test_no_set_of_callbacks_waits_more_than_once_a_step(some: Any, waits: Waits) -> None:
    logger = CSVLogger(".")
    per_step = count(waits, build(Net), [kind() for kind in some], max_epochs=1, logger=logger)
    assert len(per_step) == 7
    # Memory is in the allocator's books: whoever watches nothing else never waits.
    assert set(per_step) == {0 if some == (MemoryDeltaMonitor,) else 1}


class Branches(Net):
    """A branch that starts at zero, a layer that is dead, one that is never used."""

    def __init__(self, *, clears: bool = True) -> None:
        super().__init__()
        self.branch, self.dead = nn.Linear(64, 3), nn.Linear(64, 3)
        self.unused = nn.Linear(3, 3)
        nn.init.zeros_(self.branch.weight)
        nn.init.constant_(self.dead.bias, -1e3)
        self.clears = clears

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.bn(self.conv(x))).flatten(1)
        return super().forward(x) + self.branch(h) + F.relu(self.dead(h))

    def optimizer_zero_grad(self, *args: Any) -> None:
        if self.clears:
            super().optimizer_zero_grad(*args)


class Wild(Net):
    """Gradients out of the range of float32's squares: tiny at first, then huge."""

    def __init__(self) -> None:
        super().__init__(partial(torch.optim.SGD, lr=0.0))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss * (1e-30 if batch_idx < 3 else 1e25)


LBFGS = partial(torch.optim.LBFGS, lr=0.1, max_iter=3)
FUSED = partial(torch.optim.Adam, lr=1e-2, fused=True)
SITUATIONS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "accumulation": (Net, lambda: {"accumulate_grad_batches": 3}),
    "clipping by value": (
        Net,
        lambda: {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    ),
    "a scaler that overflows": (Net, lambda: {"plugins": [make_half(2.0**22)]}),
    "a fused optimizer under it": (
        partial(Net, FUSED),
        lambda: {"plugins": [make_half(2.0**22)]},
    ),
    "zero and dead layers": (Branches, dict),
    "never cleared": (partial(Branches, clears=False), dict),
    "several evaluations a step": (partial(Net, LBFGS), dict),
    "tiny and huge gradients": (Wild, lambda: {"max_epochs": 1}),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_it_waits_once_a_step_in_every_situation(name: str, waits: Waits) -> None:
    make, options = SITUATIONS[name]
    follow = "evaluations" not in name
    callback, sink = watcher(backward_hooks="every_step", adaptive_lr=follow)
    per_step = count(waits, build(make), [callback], **options())
    assert len(per_step) > 3
    assert max(per_step) == 1
    assert len(sink.records) > 3
    assert "monitor_error" not in {finding.rule for finding in callback.findings}


class SuddenlyInfinite(Net):
    """Every gradient of one batch is infinite, after gradients of an ordinary size."""

    def on_after_backward(self) -> None:
        if self.trainer.global_step == 4:
            for parameter in self.parameters():
                parameter.grad = torch.full_like(parameter, torch.inf)


def test_an_overflow_after_clean_steps_costs_no_second_wait(waits: Waits) -> None:
    callback, sink = watcher()
    module = build(SuddenlyInfinite)
    assert count(waits, module, [callback], plugins=[make_half()], max_epochs=1) == [1] * 7
    assert sink.records[-1].scalars["grad/skipped"] == 1


def test_without_a_scaler_sudden_infinities_are_confirmed_in_one_further_wait(
    waits: Waits,
) -> None:
    module = build(SuddenlyInfinite)
    per_step = count(waits, module, [GradientFlowMonitor()], max_epochs=1)
    assert per_step == [1, 1, 1, 1, 2, 1, 1]


def test_a_step_between_two_recorded_ones_waits_once_too(waits: Waits) -> None:
    options = AdaptiveLearningRateOptions(warmup_steps=0)
    callback = GradWatch(console=False, record=False, adaptive_lr=options)
    loader = ResumableLoader(make_samples(80))
    per_step = count(waits, build(Net), [callback], loader=loader, log_every_n_steps=6)
    assert len(per_step) == 40
    assert set(per_step) == {1}


def test_the_counter_sees_a_wait_of_every_kind(
    waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = torch.ones(())
    reads: list[Callable[[], object]] = [
        one.item, one.tolist, one.numpy, one.cpu, lambda: bool(one), lambda: float(one),
        lambda: int(one), lambda: torch.nonzero(one), lambda: torch.equal(one, one),
        lambda: one.to("meta"),
    ]  # fmt: skip
    monkeypatch.setattr(sys.modules[__name__], "is_ours", lambda: True)
    for number, read in enumerate(reads, start=1):
        read()
        assert waits.count == number


def test_the_counter_sees_the_one_transfer_and_not_the_user(waits: Waits) -> None:
    torch.ones(()).item()
    assert waits.count == 0
    transfer = Transfer()
    transfer.add("one", torch.ones(()))
    transfer.fetch()
    assert waits.count == 1
