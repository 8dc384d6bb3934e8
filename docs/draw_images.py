"""Draw docs/images from real training, a minute or two: `python docs/draw_images.py`."""

# ruff: noqa: INP001, TID253 - a script, and it trains with Lightning

import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from torch import nn

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
    "graph/chain": "graph",
}


def started(net: nn.Module) -> nn.Module:
    """Start a net as He et al. 2015 do, which keeps the gradient of ReLU's chain alive."""
    torch.manual_seed(0)
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return net


def train(net: nn.Module, epochs: int, *, half: bool = False) -> MemorySink:
    """Train in a plain loop and keep every fifth step; ``half`` in float16 with a scaler."""
    kept, optimizer = MemorySink(), torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=60, enabled=half)
    with gradwatch.watch(
        net, optimizer, scaler=scaler, log_every_n_steps=5, console=False, sinks=[kept]
    ):
        for _ in range(epochs):
            for x_BHW, y_B in images():
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.float16, enabled=half):
                    loss = nn.functional.cross_entropy(net(x_BHW), y_B)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    return kept


def fit() -> MemorySink:
    """Train the transformer of the examples with Lightning, clipped, with the adaptive rate."""
    kept = MemorySink()
    Trainer(
        max_steps=300, log_every_n_steps=5, gradient_clip_val=1.5, accelerator="cpu",
        callbacks=[GradWatch(adaptive_lr=True, console=False, record=False, sinks=[kept])],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Digits(), images())  # fmt: skip
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
        kept = train(started(chain(activation)), 6)
        draw(kept, {key: to.format(name) for key, to in PAIR.items()})
    torch.manual_seed(0)
    draw(fit(), TRANSFORMER)
    torch.manual_seed(0)
    draw(train(chain(nn.ReLU, 3), 6, half=True), {"grad/loss_scale": "loss_scale"})


if __name__ == "__main__":
    main()
