"""Plant a fault at each of twelve places of two networks and count who is blamed for it.

    python tests/benchmarks/planted_faults.py [--ways plain accumulated checkpointed compiled]

Eight causes, two networks of twelve places each, four ways to train. Prints how often layer
and cause were right, and each that was not. Every cell is one real training step under
`gradwatch.watch`.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradwatch
from gradwatch.findings import Finding
from gradwatch.non_finite.policy import NonFiniteOptions

WIDTH, CLEAN, FAULTY = 8, 4, 5
INF = float("inf")
Fault = Callable[[Tensor], Tensor]


def centred(x: Tensor) -> Tensor:
    """Values of both signs, whatever layer came before."""
    return x - x.mean()


def p_log_p(x: Tensor) -> Tensor:
    p = torch.softmax(centred(x) * 1e6, -1)
    return x - p * p.log()


def masked_too_late(x: Tensor) -> Tensor:
    h = centred(x)
    return torch.where(h > 0, torch.sqrt(h), h)


def all_masked(x: Tensor) -> Tensor:
    hidden = torch.zeros_like(x, dtype=torch.bool)
    hidden[2] = True
    return x + torch.softmax(x.masked_fill(hidden, -INF), -1)


def mean_over_nothing(x: Tensor) -> Tensor:
    large = x > 1e9
    return x - (x * large).sum() / large.sum()


def zero_norm(x: Tensor) -> Tensor:
    still = x - x.detach()
    return x + still.pow(2).sum(-1, keepdim=True).sqrt()


CAUSES: dict[str, Fault] = {
    "p_log_p": p_log_p,
    "masked_too_late": masked_too_late,
    "softmax_all_masked": all_masked,
    "mean_over_nothing": mean_over_nothing,
    "zero_vector_norm": zero_norm,
    "sqrt_at_zero": lambda x: x + torch.sqrt(x - x.detach()),
    "division_by_zero": lambda x: x + centred(x) / torch.relu(centred(x)),
    "exp_overflow": lambda x: x + torch.exp(centred(x).abs() * 1e9),
}


class Slot(nn.Module):
    """A place for a fault, which strikes in the one batch of odd size."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: Fault | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.fault(x) if self.fault is not None and len(x) == FAULTY else x


class Block(nn.Module):
    """Causal attention and two layers, each with its place for a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.attended, self.inner, self.outer, self.end = Slot(), Slot(), Slot(), Slot()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(1, 2)).masked_fill(future, -INF)
        x = x + self.attended(torch.softmax(scores, -1) @ v)
        h = nn.functional.gelu(self.inner(self.up(x)))
        return self.end(x + self.outer(self.down(h)))


class Stage(nn.Module):
    """Convolution, batch norm and a ReLU in place, each with its place for a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH)
        self.act = nn.ReLU(inplace=True)
        self.filtered, self.active, self.end = Slot(), Slot(), Slot()

    def forward(self, x: Tensor) -> Tensor:
        h = self.active(self.act(self.norm(self.filtered(self.conv(x)))))
        return self.end(h.clone().add_(x))


class Net(nn.Module):
    """A first layer, blocks that may be checkpointed, a head."""

    def __init__(self, first: nn.Module, blocks: list[nn.Module], *, again: bool) -> None:
        super().__init__()
        self.first, self.blocks = first, nn.ModuleList(blocks)
        self.head, self.again = nn.Linear(WIDTH, 3), again

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.again else block(h)
        pooled = h.flatten(2).mean(2) if h.dim() > 3 else h.mean(1)
        return self.head(pooled)


def transformer(*, again: bool) -> tuple[nn.Module, list[int]]:
    """Give a network of twelve places and the shape of a sample."""
    return Net(nn.Linear(6, WIDTH), [Block() for _ in range(3)], again=again), [5, 6]


def cnn(*, again: bool) -> tuple[nn.Module, list[int]]:
    """Give a network of twelve places and the shape of a sample."""
    first = nn.Conv2d(1, WIDTH, 3, padding=1)
    return Net(first, [Stage() for _ in range(4)], again=again), [1, 6, 6]


NETWORKS = {"transformer": transformer, "cnn": cnn}
WAYS = ("plain", "accumulated", "checkpointed", "compiled")


class Cell(NamedTuple):
    """One planted fault."""

    network: str
    place: str
    cause: str
    way: str


def places(network: str) -> list[str]:
    """Name the places of a network."""
    model, _ = NETWORKS[network](again=False)
    return [name for name, module in model.named_modules() if isinstance(module, Slot)]


def cells(ways: tuple[str, ...] = WAYS) -> Iterator[Cell]:
    """Walk the whole table."""
    for way in ways:
        for network in NETWORKS:
            for place in places(network):
                yield from (Cell(network, place, cause, way) for cause in CAUSES)


def strike(cell: Cell) -> Finding | None:
    """Train one step into the fault; give what was found.

    Under accumulation the second of three micro-batches is the faulty one.
    """
    torch.manual_seed(0)
    model, shape = NETWORKS[cell.network](again=cell.way == "checkpointed")
    slot = model.get_submodule(cell.place)
    assert isinstance(slot, Slot)
    slot.fault = CAUSES[cell.cause]
    called = model
    if cell.way == "compiled":
        torch._dynamo.reset()
        called = cast("nn.Module", torch.compile(model, backend="eager"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sizes = [CLEAN, FAULTY, CLEAN] if cell.way == "accumulated" else [FAULTY]
    options = NonFiniteOptions(policy="warn", bundle=False)
    with gradwatch.watch(
        called, optimizer, non_finite=options, gradient_flow=False, memory=False, console=False
    ) as watched:
        for size in sizes:
            out = called(torch.randn(size, *shape))
            watched.loss(out.pow(2).mean() / len(sizes)).backward()
        optimizer.step()
    return next((each for each in watched.findings if each.rule == "non_finite"), None)


def judge(cell: Cell, finding: Finding | None) -> tuple[bool, bool]:
    """Say whether layer and cause are right."""
    if finding is None:
        return False, False
    micro = cell.way != "accumulated" or finding.evidence.get("micro-batch") == "2 of 3"
    layer = finding.layer == cell.place and micro
    return layer, finding.evidence.get("known as") == cell.cause


def measure(ways: tuple[str, ...]) -> None:
    """Fill the table and print it row by row; under it what was not right."""
    wrong: list[str] = []
    print("| network | way | faults | layer right | cause right | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    for (network, way), row in groupby(cells(ways), key=lambda cell: (cell.network, cell.way)):
        start, rights = time.perf_counter(), []
        for cell in row:
            finding = strike(cell)
            rights.append(judge(cell, finding))
            if not all(rights[-1]):
                wrong.append(f"{cell}: {finding and finding.lines()[0]}")
        layers, causes = (sum(each) for each in zip(*rights, strict=True))
        seconds = time.perf_counter() - start
        print(
            f"| {network} | {way} | {len(rights)} | {layers} | {causes} | {seconds:.0f} |",
            flush=True,
        )
    print("\n".join(wrong) or "all right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    warnings.simplefilter("ignore")
    measure(tuple(parser.parse_args().ways))
