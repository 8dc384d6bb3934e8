"""A fault planted anywhere in a random network is found where it was planted."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradwatch.non_finite.blame import REPRODUCIBLE, Blame
from tests.modules import Apply

Examine = Callable[..., Blame]
WIDTH = 8
INF = float("inf")


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y.clone().add_(x)


class Again(nn.Module):
    def __init__(self, inner: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = nn.Sequential(nn.Linear(WIDTH, WIDTH), inner), reentrant

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return out


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), -INF).triu(1)
        out: Tensor = self.attn(x, x, x, attn_mask=mask)[0]
        return out


BLOCKS: tuple[Callable[[random.Random], nn.Module], ...] = (
    lambda _: nn.Linear(WIDTH, WIDTH),
    lambda _: nn.LayerNorm(WIDTH),
    lambda _: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    lambda _: nn.GELU(),
    lambda _: nn.Dropout(0.2),
    lambda _: Causal(),
    lambda _: Apply(lambda x: x.transpose(1, 2).contiguous().transpose(1, 2).reshape(x.shape)),
    lambda dice: Residual(make_chain(dice)),
    lambda dice: Again(make_chain(dice), reentrant=True),
    lambda dice: Again(make_chain(dice), reentrant=False),
)
FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "root of a square": lambda x: torch.sqrt((x * (x > 0)) ** 2),
    "guard too late": lambda x: torch.where(x > 0, torch.sqrt(x), x),
    "log of zero": lambda x: x * torch.relu(x).log(),
    "division by zero": lambda x: x / (x - x.detach()),
    "overflow": lambda x: x + torch.exp(x.abs() * 1e5),
    "row all masked": lambda x: x + torch.softmax(torch.full_like(x, -INF) + x, -1),
    "norm of zero": lambda x: x / (x * 0).norm(dim=-1, keepdim=True),
    "spread of one": lambda x: x / x[..., :1].std(-1, keepdim=True, correction=0) + x,
    "half overflow": lambda x: (x.half() * 60000 * 100).float(),
}


def make_chain(dice: random.Random) -> nn.Sequential:
    blocks = (dice.choice(BLOCKS[: 7 + 3 * (dice.random() < 0.3)])(dice) for _ in range(2))
    return nn.Sequential(*blocks)


def plant(model: nn.Module, fault: nn.Module, dice: random.Random) -> str:
    """Put the fault behind a random place of a random chain; give its name."""
    chain = dice.choice([each for each in model.modules() if isinstance(each, nn.Sequential)])
    chain.insert(dice.randint(1, len(chain)), fault)
    return next(name for name, module in model.named_modules() if module is fault)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(3))
def test_a_fault_planted_in_a_random_network_is_found(
    examine: Examine, fault: str, seed: int
) -> None:
    dice = random.Random(f"{fault} {seed}")  # noqa: S311
    blocks = (dice.choice(BLOCKS)(dice) for _ in range(4))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks)
    name = plant(model, Apply(FAULTS[fault]), dice)
    model.append(nn.Linear(WIDTH, 2))
    blame = examine(model, lambda x: model(x).pow(2).mean(), torch.randn(3, 5, WIDTH))
    assert (blame.place, blame.verdict) == (name, REPRODUCIBLE)
