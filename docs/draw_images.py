"""Draw docs/images from real training, a minute or two: `python docs/draw_images.py`."""

# ruff: noqa: INP001, TID253 - a script, and it trains with Lightning

import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

import gradwatch
from gradwatch import MemorySink
from gradwatch.callbacks import GradWatch
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
    draw(train_in_half(Chain(nn.ReLU, 3).net), {"grad/loss_scale": "loss_scale"})


if __name__ == "__main__":
    main()
