"""After a fit, an error or an interruption nothing is left; what is copied amid it is free."""

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.callbacks import GradWatch
from tests.kit import Net, build, fit, make_half, make_loader, watcher

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Breaks(Net):
    """Raise at the third batch, in the middle of a sampled step."""

    error: BaseException = ValueError("the user's own bug")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2:
            raise self.error
        return super().training_step(batch, batch_idx)


class Interrupted(Breaks):
    error = KeyboardInterrupt()


class BadNeighbour(pl.Callback):
    """Its own on_exception raises, so that Lightning calls nobody after it."""

    def on_exception(self, *args: Any) -> None:
        raise OSError("disk full")


def find_marks(trainer: pl.Trainer, module: nn.Module) -> dict[str, Any]:
    """Name every hook and every attribute of all that a callback can reach."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    loop = trainer.fit_loop
    objects = [trainer, trainer.strategy, loop, loop.epoch_loop, scaler]
    marks: dict[str, Any] = {
        f"{type(thing).__name__} {number}": sorted(getattr(thing, "__dict__", ()))
        for number, thing in enumerate([*objects, *trainer.optimizers, *module.modules()])
    }
    for name, part in module.named_modules():
        marks[f"hooks of {name}"] = [len(getattr(part, kind)) for kind in HOOKS]
    for name, parameter in module.named_parameters():
        own = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
        marks[f"hooks of {name}"] = [len(hooks or ()) for hooks in own]
    for number, optimizer in enumerate(trainer.optimizers):
        before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        marks[f"hooks of optimizer {number}"] = (len(before), len(after))
    return marks


def marks_after(make: Callable[[], Any], callbacks: Sequence[pl.Callback]) -> dict[str, Any]:
    module = build(make)
    trainer = pl.Trainer(
        callbacks=list(callbacks),
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
        plugins=[make_half()],
    )
    try:
        trainer.fit(module, make_loader())
    except (ValueError, OSError, SystemExit):
        assert trainer.global_step == 2
    return find_marks(trainer, module)


ENDS: dict[str, tuple[Callable[[], Any], list[type[pl.Callback]]]] = {
    "a fit": (Net, []),
    "an exception": (Breaks, []),
    "Ctrl-C": (Interrupted, []),
    "an exception in another callback's clean-up": (Breaks, [BadNeighbour]),
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left_after(end: str) -> None:
    make, others = ENDS[end]
    callback, sink = watcher(backward_hooks="every_step", adaptive_lr=True)
    bare = marks_after(make, [kind() for kind in others])
    watched = marks_after(make, [*(kind() for kind in others), callback])
    assert watched == bare
    assert sink.records
    assert sink.closed


class Looks(pl.Callback):
    def __init__(self, look: Callable[[pl.Trainer, Any], None]) -> None:
        self.look = look

    def on_before_backward(self, trainer: pl.Trainer, module: Any, loss: Tensor) -> None:
        self.look(trainer, module)


def test_the_marks_see_what_is_attached_during_a_fit() -> None:
    seen: list[dict[str, Any]] = []
    look = Looks(lambda trainer, module: seen.append(find_marks(trainer, module)))
    fit(build(Net), [look], max_steps=1)
    fit(build(Net), [watcher()[0], look], max_steps=1)
    differing = {name for name in seen[0] if seen[0][name] != seen[1][name]}
    assert {"hooks of conv", "hooks of optimizer 0", "SingleDeviceStrategy 1"} <= differing


def test_a_second_fit_with_the_same_model_and_callback_is_like_the_first() -> None:
    callback, sink = watcher()
    module = build(Net)
    trainer = fit(module, [callback], max_epochs=1)
    once = find_marks(trainer, module)
    records = len(sink.records)
    assert find_marks(fit(module, [callback], max_epochs=1), module) == once
    assert len(sink.records) == 2 * records


def test_a_fit_after_one_that_broke_is_watched_like_a_first_one() -> None:
    callback, sink = watcher()
    with pytest.raises(ValueError, match="the user's own bug"):
        fit(build(Breaks), [callback])
    told = len(sink.records)
    fit(build(Net), [callback], max_epochs=1, log_every_n_steps=1)
    assert len(sink.records) == told + 7


class Body(Net):
    """Its body is made of torch's own modules, so that a pickle needs torch alone."""

    def __init__(self, look: Callable[["Body"], None]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Dropout(), nn.Linear(8, 3))
        self._look = [look]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.cross_entropy(self.body(batch[0]), batch[1])
        self._look[0](self)
        return loss


def watch_body(look: Callable[[Body, GradWatch], None]) -> None:
    callback, _ = watcher(backward_hooks="every_step")
    module = build(lambda: Body(lambda module: look(module, callback)))
    fit(module, [callback], max_steps=2)
    assert callback.findings == () or "monitor_error" not in {f.rule for f in callback.findings}


def test_a_deep_copy_made_amid_a_step_tells_the_session_nothing() -> None:
    def look(module: Body, callback: GradWatch) -> None:
        assert len(module.body[1]._forward_hooks) > 0
        twin = copy.deepcopy(module.body)
        taps = callback._session._reader._taps  # type: ignore[union-attr]
        before = dict(taps.calls)
        twin(torch.ones(2, 36)).sum().backward()
        assert taps.calls == before
        copied.append(twin)

    copied: list[nn.Module] = []
    watch_body(look)
    assert len(copied) == 2


def test_the_state_dict_has_the_same_keys_while_it_is_watched() -> None:
    seen: list[set[str]] = []
    watch_body(lambda module, _callback: seen.append(set(module.state_dict())))
    assert seen == [set(build(lambda: Body(lambda _: None)).state_dict())] * 2


def test_a_pickle_made_amid_a_step_loads_where_gradwatch_is_not_installed(tmp_path: Path) -> None:
    path = tmp_path / "body.pt"
    watch_body(lambda module, _callback: torch.save(module.body, path))
    script = (
        "import sys; sys.modules['gradwatch'] = None; import torch; "
        f"body = torch.load({str(path)!r}, weights_only=False); "
        "out = body(torch.ones(2, 36)); out.sum().backward(); print(tuple(out.shape))"
    )
    command = [sys.executable, "-I", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "(2, 3)", done.stderr


def test_the_whole_lightning_module_pickles_amid_a_step() -> None:
    def look(trainer: pl.Trainer, module: Net) -> None:
        buffer = io.BytesIO()
        torch.save(module, buffer)
        buffer.seek(0)
        loaded.append(torch.load(buffer, weights_only=False))

    loaded: list[Net] = []
    module = build(Net)
    module._make = torch.optim.SGD
    fit(module, [watcher()[0], Looks(look)], max_steps=1)
    assert set(loaded[0].state_dict()) == set(module.state_dict())


def through_pickle(callback: Any) -> Any:
    return pickle.loads(pickle.dumps(callback))  # noqa: S301 - made a moment ago


@pytest.mark.parametrize("how", [copy.deepcopy, through_pickle])
def test_a_copy_of_the_callback_made_amid_a_fit_is_attached_to_nothing(
    how: Callable[[Any], Any],
) -> None:
    callback, _ = watcher()
    copies: list[GradWatch] = []
    look = Looks(lambda _trainer, _module: copies.append(how(callback)))
    fit(build(Net), [callback, look], max_steps=2, log_every_n_steps=1)
    assert [twin.findings for twin in copies] == [(), ()]
    assert not any(set(vars(twin)) & {"log", "log_dict"} for twin in copies)
    sink = copies[-1].configuration.sinks[0]
    before = len(sink.records)  # type: ignore[attr-defined]
    fit(build(Net), [copies[-1]], max_steps=3, log_every_n_steps=1)
    assert len(sink.records) == before + 3  # type: ignore[attr-defined]
