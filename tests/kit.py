"""Small trainings that are the same each time, and what they leave behind, bit for bit."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from gradwatch import MemorySink
from gradwatch.callbacks import GradWatch

Loader = DataLoader[tuple[Tensor, ...]]
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "max_epochs": 2,
}


class Net(pl.LightningModule):
    """Convolution, batch norm, in-place ReLU, layer norm and dropout; draws from every RNG."""

    def __init__(self, optimizer: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.hidden = nn.Linear(64, 16)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, 3)
        self.losses: list[Tensor] = []
        self._make = optimizer or make_sgd

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.bn(self.conv(x))).flatten(1)
        out: Tensor = self.head(self.drop(self.norm(self.hidden(h))))
        return out

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        noise = random.random() * 0.1 + float(np.random.rand()) * 0.1  # noqa: NPY002, S311
        loss = F.cross_entropy(self(x + noise), y)
        self.losses.append(loss.detach().clone())
        return loss

    def configure_optimizers(self) -> Any:
        return self._make(self.parameters())


class Calm(Net):
    """The same without batch norm and without random numbers: it can be resumed exactly."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.hidden(self.act(self.conv(x)).flatten(1))))
        return out

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(loss.detach().clone())
        return loss


class SkipsByHand(pl.Callback):
    """What a careful user would write: no gradients, no update."""

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        grads = [each.grad for each in module.parameters() if each.grad is not None]
        if not all(bool(grad.isfinite().all()) for grad in grads):
            for parameter in module.parameters():
                parameter.grad = None


class SavesAt(pl.Callback):
    """Save a checkpoint in the middle of an epoch, after so many optimizer steps."""

    def __init__(self, step: int, path: str = "middle.ckpt") -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def make_sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def make_samples(count: int = 28, spoil: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Make images and labels; the images named in ``spoil`` hold one NaN each."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 1, 6, 6, generator=generator)
    x[list(spoil), 0, 2, 2] = float("nan")
    return x, torch.randint(0, 3, (count,), generator=generator)


def make_loader(count: int = 28, spoil: Sequence[int] = (), size: int = 4) -> Loader:
    return DataLoader(TensorDataset(*make_samples(count, spoil)), batch_size=size)


class ResumableLoader:
    """Batches in their order that know, as Lightning asks of them, where they stand."""

    def __init__(self, samples: tuple[Tensor, ...], size: int = 4) -> None:
        self._batches = list(zip(*(part.split(size) for part in samples), strict=True))
        self._next = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for number in range(self._next, len(self._batches)):
            self._next = (number + 1) % len(self._batches)
            yield self._batches[number]

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["next"]


def make_half(scale: float = 1024.0) -> MixedPrecision:
    """Give float16 with a gradient scaler on the CPU."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return MixedPrecision("16-mixed", "cpu", scaler)


def seed_everything() -> None:
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002 - the generator that user code still draws from
    torch.manual_seed(7)


def fit(
    module: pl.LightningModule,
    callbacks: Sequence[pl.Callback] = (),
    loader: Loader | ResumableLoader | None = None,
    *,
    val: Loader | None = None,
    ckpt_path: str | None = None,
    **options: Any,
) -> pl.Trainer:
    """Train with nothing on the console; the RNGs start anew."""
    trainer = pl.Trainer(callbacks=list(callbacks), **{**QUIET, **options})
    seed_everything()
    data = loader or make_loader()
    trainer.fit(module, data, val, ckpt_path=ckpt_path, weights_only=False)
    return trainer


def build(make: Callable[[], pl.LightningModule]) -> Any:
    seed_everything()
    return make()


def watcher(**options: Any) -> tuple[GradWatch, MemorySink]:
    """Give a quiet GradWatch and the sink it tells."""
    sink = MemorySink()
    return GradWatch(console=False, record=False, sinks=[sink], **options), sink


def fingerprint(trainer: pl.Trainer, module: Any) -> dict[str, Any]:
    """Take everything a run leaves behind."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return {
        "weights": dict(module.state_dict()),
        "losses": list(module.losses),
        "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
        "scaler": None if scaler is None else scaler.state_dict(),
        "global_step": trainer.global_step,
        **random_state(),
    }


def random_state() -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state(),
        "random": random.getstate(),
        "numpy": np.random.get_state(legacy=False)["state"],  # noqa: NPY002 - the global one
    }


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Name where two fingerprints are not the same bits; NaN equals itself."""
    if isinstance(left, Tensor):
        return [] if _same_bits(left, right) else [path]
    if isinstance(left, np.ndarray):
        return [] if left.tobytes() == right.tobytes() else [path]
    if isinstance(left, dict):
        unlike = [f"{path} keys"] if left.keys() != right.keys() else []
        return unlike + [d for k in left for d in differences(left[k], right.get(k), f"{path}/{k}")]
    if isinstance(left, list | tuple):
        unlike = [f"{path} length"] if len(left) != len(right) else []
        pairs = enumerate(zip(left, right, strict=False))
        return unlike + [d for i, (a, b) in pairs for d in differences(a, b, f"{path}/{i}")]
    return [] if left == right else [f"{path}: {left!r} is not {right!r}"]


def _same_bits(left: Tensor, right: object) -> bool:
    if not isinstance(right, Tensor) or left.dtype != right.dtype or left.shape != right.shape:
        return False
    return left.detach().numpy().tobytes() == right.detach().numpy().tobytes()
