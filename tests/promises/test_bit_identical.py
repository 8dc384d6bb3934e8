"""Watching changes nothing: not one bit of losses, weights, optimizer or random state."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.kit import (
    Net,
    ResumableLoader,
    SavesAt,
    build,
    differences,
    fingerprint,
    fit,
    make_half,
    make_loader,
    make_samples,
    watcher,
)

Make = Callable[[], Any]
Options = Callable[[], dict[str, Any]]


class Gan(Net):
    """Two optimizers taken in turns by hand, with toggles and schedulers."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(5, 36), nn.Tanh())

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        first, second = self.optimizers()  # type: ignore[attr-defined]
        self._turn(first, lambda: F.cross_entropy(self(x), y))
        fake = self.generator(torch.randn(len(x), 5)).view(-1, 1, 6, 6)
        self._turn(second, lambda: -self(fake).logsumexp(1).mean())
        for scheduler in self.lr_schedulers():  # type: ignore[union-attr]
            scheduler.step()

    def _turn(self, optimizer: Any, loss_of: Callable[[], Tensor]) -> None:
        self.toggle_optimizer(optimizer)
        loss = loss_of()
        self.losses.append(loss.detach().clone())
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        own = [p for name, p in self.named_parameters() if not name.startswith("generator")]
        first = torch.optim.SGD(own, lr=0.05, momentum=0.9)
        second = torch.optim.Adam(self.generator.parameters(), lr=1e-3)
        decay = partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)
        return [first, second], [decay(first), decay(second)]


class SkipsSome(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx % 3 == 1 else loss


class Checkpointed(Net):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.bn(self.conv(x))).flatten(1).requires_grad_()
        inner = nn.Sequential(self.hidden, self.norm, self.drop)
        out: Tensor = self.head(checkpoint(inner, h, use_reentrant=self.reentrant))
        return out


class Compiled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.compile(nn.Sequential(nn.Linear(64, 16), nn.ReLU()), backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.bn(self.conv(x))).flatten(1)
        out: Tensor = self.head(self.drop(self.norm(self.body(h))))
        return out


class Hooked(Net):
    """A user's own hooks of every kind; each leaves its mark on the run."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden.register_forward_pre_hook(lambda _m, args: (args[0] * 1.01,))
        self.norm.register_forward_hook(lambda _m, _args, out: out * 0.99)
        self.head.register_full_backward_hook(self._enlarge)
        self.head.weight.register_hook(lambda grad: grad * 0.5)
        self.conv.register_forward_hook(self._count)
        self.register_buffer("calls", torch.zeros(()))

    def _enlarge(self, _module: object, grad_in: Any, _grad_out: object) -> Any:
        return (grad_in[0] * 1.5,)

    def _count(self, *_: object) -> None:
        self.get_buffer("calls").add_(1)


class Transformer(Net):
    """Dropout in attention; validation takes the fast path, which a hook would switch off."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x[:, 0])
        return super().forward(h.unsqueeze(1))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.losses.append(self(batch[0]).detach().clone())


def choose(optimizer: Any, **options: Any) -> Make:
    return partial(Net, partial(optimizer, **options))


def with_validation() -> dict[str, Any]:
    return {"val": make_loader(8), "val_check_interval": 3}


ADAM = choose(torch.optim.Adam, lr=1e-2)
FUSED = choose(torch.optim.Adam, lr=1e-2, fused=True)
LBFGS = choose(torch.optim.LBFGS, lr=0.1, max_iter=3)
RUNS: dict[str, tuple[Make, Options]] = {
    "plain": (Net, dict),
    "a short last window": (Net, lambda: {"accumulate_grad_batches": 4}),
    "clipping by norm": (Net, lambda: {"gradient_clip_val": 0.5}),
    "clipping by value": (
        Net,
        lambda: {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    ),
    "a scaler": (ADAM, lambda: {"plugins": [make_half()]}),
    "a scaler that overflows at first": (ADAM, lambda: {"plugins": [make_half(2.0**40)]}),
    "a scaler with accumulation": (
        Net,
        lambda: {"plugins": [make_half()], "accumulate_grad_batches": 3, "gradient_clip_val": 1.0},
    ),
    "a fused optimizer under a scaler": (FUSED, lambda: {"plugins": [make_half(2.0**40)]}),
    "bfloat16": (Net, lambda: {"precision": "bf16-mixed"}),
    "double": (Net, lambda: {"precision": "64-true"}),
    "two optimizers by hand": (Gan, dict),
    "LBFGS": (LBFGS, dict),
    "steps left out": (SkipsSome, lambda: {"accumulate_grad_batches": 2}),
    "checkpointing": (partial(Checkpointed, reentrant=False), dict),
    "reentrant checkpointing": (partial(Checkpointed, reentrant=True), dict),
    "a compiled part": (Compiled, dict),
    "hooks of the user": (Hooked, dict),
    "a transformer validated in between": (Transformer, with_validation),
}


def run(make: Make, options: Options, callbacks: tuple[Any, ...] = ()) -> dict[str, Any]:
    module = build(make)
    trainer = fit(module, callbacks, log_every_n_steps=1, **options())
    return fingerprint(trainer, module)


@pytest.mark.filterwarnings(
    "ignore:.*use_reentrant",
    "ignore:.training_step. returned .None.",
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
)
@pytest.mark.parametrize("name", RUNS)
def test_a_watched_run_is_the_unwatched_one_bit_for_bit(name: str) -> None:
    make, options = RUNS[name]
    bare = run(make, options)
    callback, sink = watcher(backward_hooks="every_step")
    watched = run(make, options, (callback,))
    assert differences(bare, watched) == []
    assert len(bare["losses"]) > 3
    assert len(sink.records) > 1
    assert "monitor_error" not in {finding.rule for finding in callback.findings}


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("name", ["plain", "a scaler", "two optimizers by hand"])
@pytest.mark.parametrize("hooks", ["sampled", "module"])
def test_no_kind_of_backward_hook_changes_a_bit(name: str, hooks: str) -> None:
    make, options = RUNS[name]
    out_of_place = partial(_without_in_place, make)
    callback, _ = watcher(backward_hooks=hooks)
    watched = run(out_of_place, options, (callback,))
    assert differences(run(out_of_place, options), watched) == []
    assert callback.findings == ()


def _without_in_place(make: Make) -> Any:
    module = make()
    module.act = nn.ReLU()
    return module


def test_a_run_resumed_amid_an_epoch_is_bit_identical_too() -> None:
    def resumed(callbacks: Callable[[], tuple[Any, ...]]) -> dict[str, Any]:
        fit(build(Net), (*callbacks(), SavesAt(4)), ResumableLoader(make_samples()), max_steps=6)
        module, loader = build(Net), ResumableLoader(make_samples())
        options: dict[str, Any] = {"ckpt_path": "middle.ckpt", "log_every_n_steps": 1}
        return fingerprint(fit(module, callbacks(), loader, **options), module)

    watched = resumed(lambda: (watcher()[0],))
    assert watched["global_step"] == 14
    assert differences(resumed(tuple), watched) == []


def test_the_fast_path_of_a_transformer_stays_on_while_it_is_watched() -> None:
    callback, _ = watcher(backward_hooks="every_step")
    module = build(Transformer)
    fast: list[bool] = []

    def look(batch: Any, batch_idx: int) -> None:
        with torch.profiler.profile() as profile:
            module(batch[0])
        names = {event.key for event in profile.key_averages()}
        fast.append("aten::_transformer_encoder_layer_fwd" in names)

    module.validation_step = look
    fit(module, [callback], log_every_n_steps=1, **with_validation())
    assert fast
    assert all(fast)


def test_the_fingerprint_tells_one_bit_and_one_random_number() -> None:
    bare = run(Net, dict)
    other = run(Net, lambda: {"max_epochs": 3})
    assert len(differences(bare, other)) > 3
    nudged = {**bare, "weights": {**bare["weights"]}}
    nudged["weights"]["conv.bias"] = bare["weights"]["conv.bias"] + make_samples()[0][0, 0, 0, 0]
    assert differences(bare, nudged) == ["/weights/conv.bias"]
