"""Draw docs/images from real training, a minute or two: `python docs/draw_images.py`."""

# ruff: noqa: INP001, TID253 - a script, and it trains with Lightning

import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

import gradwatch
from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward, GradWatch
from gradwatch.history import History
from gradwatch.pictures import gallery

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent / "examples"))

from digits import Digits, images, quiet  # noqa: E402 - stands in the folder named above
from vanishing import chain  # noqa: E402 - likewise

PAIR = {"flow/heatmap": "{}", "flow/profile": "{}_profile"}
TRANSFORMER = {
    "flow/heatmap": "flow",
    "flow/update_ratio": "update_ratio",
    "flow/total_norm": "total_norm",
    "lr/signal": "learning_rate",
    "mem/process": "memory",
}


class Chain(LightningModule):
    """The chain of the examples, started as He et al. 2015 do, which suits ReLU."""

    def __init__(self, activation: type[nn.Module], depth: int = 12) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = chain(activation, depth)
        for module in self.net:
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Give the loss of a batch of images and labels."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Give Adam at its usual rate."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class RootMeanSquare(nn.Module):
    """The norm of a transformer (Zhang and Sennrich 2019) as it is mostly written by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        """Give each row with a mean square of one."""
        spread = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(spread + self.eps)).to(x.dtype)


def convolve(inputs: int, outputs: int) -> nn.Module:
    """Give a convolution with its norm and activation."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class Convolving(LightningModule):
    """Convolutions whose layout can be tried, and norms by hand over all they give."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(convolve(1, 32), *(convolve(32, 32) for _ in range(5)))
        self.norms = nn.Sequential(*(RootMeanSquare(32 * 64) for _ in range(4)))
        self.head = nn.Linear(32 * 64, 10)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Give the loss of a batch of images and labels."""
        x = self.norms(self.convolutions(batch[0][:, None]).flatten(1))
        return nn.functional.cross_entropy(self.head(x), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Give Adam at its usual rate."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def try_changes(module: LightningModule) -> MemorySink:
    """Train until the trial is over; torch's own fused norm and channels_last can be tried."""
    kept = MemorySink()
    options = FusedBackwardOptions(min_elements=1 << 12, most_pairs=24)
    watch = FusedBackward(options, sinks=[kept])
    Trainer(
        max_steps=14, accelerator="cpu", callbacks=[watch], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(module, images())  # fmt: skip
    return kept


def fit(
    module: LightningModule, *, steps: int, clip: float | None = None,
    adaptive_lr: bool = False, roofline: bool = False,
) -> MemorySink:  # fmt: skip
    """Train with Lightning, and keep every fifth step."""
    kept = MemorySink()
    watch = GradWatch(
        adaptive_lr=adaptive_lr, roofline=roofline, console=False, record=False, sinks=[kept]
    )
    Trainer(
        max_steps=steps, log_every_n_steps=5, gradient_clip_val=clip, accelerator="cpu",
        callbacks=[watch], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module, images())  # fmt: skip
    return kept


def train_in_half(net: nn.Module) -> MemorySink:
    """Train in float16 with a scaler, which Lightning has for GPUs only."""
    kept, optimizer = MemorySink(), torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=60)
    with gradwatch.watch(
        net, optimizer, scaler=scaler, log_every_n_steps=5, console=False, sinks=[kept]
    ):
        for x_BHW, y_B in (batch for _ in range(6) for batch in images()):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(net(x_BHW), y_B)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return kept


def draw(kept: MemorySink, names: Mapping[str, str]) -> None:
    """Save the pictures that have a name."""
    history = History()
    for record in kept.records:
        history.add(record)
    for picture in gallery(history, tables={table.name: table for table in kept.tables}):
        if picture.name in names:
            path = FOLDER / "images" / f"{names[picture.name]}.png"
            picture.image.save(path, optimize=True)
            print(path.name, f"{path.stat().st_size / 1024:.0f} KiB")  # noqa: T201 - what it did


def main() -> None:
    """Draw all of them."""
    quiet()
    for activation, name in ((nn.ReLU, "healthy"), (nn.Sigmoid, "vanishing")):
        kept = fit(Chain(activation), steps=168)
        draw(kept, {key: to.format(name) for key, to in PAIR.items()})
    draw(kept, {"graph/chain": "graph"})
    torch.manual_seed(0)
    draw(fit(Digits(), steps=300, clip=1.5, adaptive_lr=True), TRANSFORMER)
    torch.manual_seed(0)
    draw(fit(Digits(), steps=40, roofline=True), {"roofline/chart": "roofline"})
    torch.manual_seed(0)
    draw(try_changes(Convolving()), {"fused/chart": "trials"})
    draw(train_in_half(Chain(nn.ReLU, 3).net), {"grad/loss_scale": "loss_scale"})


if __name__ == "__main__":
    main()
