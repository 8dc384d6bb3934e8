"""Nets whose chains run across modules, and a provider that takes them over in plain torch."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.providers import Site
from tests.fused.lab import quick

CALLS: list[str] = []


class Chains:
    """Takes pairs, triples and norms over, and counts the calls."""

    name = "chains"

    def propose(self, site: Site) -> Any:
        return {
            "module": quick_norm if type(site.module) is nn.LayerNorm else None,
            "Linear → act": linear_gelu if site.activation == "gelu" else linear_relu,
            "BatchNorm2d → act": norm_relu,
            "BatchNorm2d → add → act": norm_add_relu,
            "add → norm": add_norm,
        }.get(site.pattern)


def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
    CALLS.append("norm")
    return quick(self, x)


quick_norm = forward


def linear_gelu(linear: nn.Linear, x: Tensor) -> Tensor:
    CALLS.append("linear → gelu")
    return F.gelu(F.linear(x, linear.weight, linear.bias))


def linear_relu(linear: nn.Linear, x: Tensor) -> Tensor:
    CALLS.append("linear → relu")
    return F.relu(F.linear(x, linear.weight, linear.bias))


def norm_relu(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    CALLS.append("norm → relu")
    return F.relu(nn.BatchNorm2d.forward(norm, x))


def norm_add_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor) -> Tensor:
    CALLS.append("norm → add → relu")
    return F.relu(nn.BatchNorm2d.forward(norm, x) + residual)


def add_norm(norm: nn.Module, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    CALLS.append("add → norm")
    total = x + residual
    return type(norm).forward(norm, total), total


class Convolved(nn.Module):
    """A convolution, its norm, and an activation or none, in a module of their own."""

    def __init__(self, width: int, act: nn.Module) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.normalization, self.activation = nn.BatchNorm2d(width), act

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.normalization(self.convolution(x)))


class ResidualBlock(nn.Module):
    """Two of them in a Sequential; addition and activation stand in the block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shortcut = nn.Identity()
        self.layer = nn.Sequential(
            Convolved(width, nn.ReLU(inplace=True)), Convolved(width, nn.Identity())
        )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.layer(x)
        x += self.shortcut(residual)
        return self.activation(x)


class ResNet(nn.Module):
    """A stem, residual blocks, a head."""

    def __init__(self, blocks: int = 1, width: int = 4) -> None:
        super().__init__()
        self.stem = Convolved(width, nn.ReLU())
        self.blocks = nn.Sequential(*(ResidualBlock(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Mlp(nn.Module):
    """Two products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class PreNorm(nn.Module):
    """The norm comes first: behind the addition that ends the block before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class PostNorm(nn.Module):
    """The norm comes last: behind the block's own addition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.mlp(x))


class Stack(nn.Module):
    """Blocks in a list, a last norm, a head."""

    def __init__(self, blocks: Iterable[nn.Module], width: int = 16) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(width, width), nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
