"""What the examples share: scikit-learn's 1,797 digits of 8×8 and a small transformer for them.

Legend: B batch, T token (one a column of the image), P pixels of a column, F features.
"""

import logging
import warnings

import torch
import wandb
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    """Attention over the columns that are not blank, within a window of neighbours."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down, self.window = nn.Linear(32, 64), nn.Linear(64, 32), window

    def forward(self, x_BTF: Tensor, blank_BT: Tensor) -> Tensor:
        q_BTF, k_BTF, v_BTF = self.qkv(self.norm(x_BTF)).chunk(3, dim=-1)
        place_T = torch.arange(x_BTF.shape[1])
        hidden_BTT = blank_BT[:, None] | ((place_T[:, None] - place_T).abs() > self.window)
        score_BTT = (q_BTF @ k_BTF.mT / 32**0.5).masked_fill(hidden_BTT, -torch.inf)
        x_BTF = x_BTF + self.out(score_BTT.softmax(dim=-1) @ v_BTF)
        moved: torch.Tensor = self.down(self.up(x_BTF).relu())
        return x_BTF + moved


class Digits(LightningModule):
    """A transformer of 27 layers; in the third block a column may see few others, or none."""

    def __init__(self, window: int = 8) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 32), nn.Linear(8 * 32, 10)
        self.blocks = nn.ModuleList([Block(window if i == 2 else 8) for i in range(5)])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x_BTP = batch[0].mT
        x_BTF, blank_BT = self.embed(x_BTP), x_BTP.sum(dim=-1) == 0
        for block in self.blocks:
            x_BTF = block(x_BTF, blank_BT)
        loss = F.cross_entropy(self.head(x_BTF.flatten(1)), batch[1])
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def images(batch_size: int = 64) -> DataLoader[tuple[Tensor, ...]]:
    """Give shuffled batches of images (B, 8, 8), values in 0 … 1, and of labels (B,)."""
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.images).float() / 16, torch.tensor(digits.target))
    order = torch.Generator().manual_seed(0)
    return DataLoader(data, batch_size, shuffle=True, drop_last=True, generator=order)


def quiet() -> None:
    """Leave the console to the example: no hints of Lightning's, no notes of W&B's."""
    wandb.setup(wandb.Settings(silent=True))
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
