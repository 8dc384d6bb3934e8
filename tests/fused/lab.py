"""Small models, providers that are right, and providers that are wrong in one way each."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.bench import Bench
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.providers import Offer, Provider, Site
from gradwatch.fused.trial import Result, Trial
from gradwatch.non_finite.capture import hold
from gradwatch.non_finite.program import ClosureProgram
from gradwatch.ranks import Ranks

QUICK: dict[str, Any] = {
    "min_elements": 1, "pairs": 8, "most_pairs": 8, "compile_seconds": 20.0, "profile": False,
    "channels_last": False,
}  # fmt: skip


class Clock:
    """Time that passes where the lab says so: what is slower is slower on any machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 5e-4
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


class Offers:
    """A provider that offers one forward for one class."""

    def __init__(
        self, kind: type[nn.Module], forward: Callable[..., Any], name: str = "lab"
    ) -> None:
        self.kind, self.forward, self.name = kind, forward, name

    def propose(self, site: Site) -> Offer:
        return self.forward if type(site.module) is self.kind else None


class SlowNorm(nn.LayerNorm):
    """A layer norm that takes its time."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the stock name
        CLOCK.spend(0.008)
        return super().forward(input)


class Residual(nn.Module):
    """Norm, product, activation, addition: what a transformer block is made of."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.norm, self.linear = norm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


class Net(nn.Module):
    """Two such blocks and a head."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm, width: int = 16) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Residual(width, norm), Residual(width, norm))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


def make_batch(width: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(6, width, generator=generator)
    return x, torch.randint(0, 3, (6,), generator=generator)


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make_bench(
    model: nn.Module,
    batch: Any = None,
    loss: Callable[[nn.Module, Any], Tensor] = loss_of,
) -> Bench:
    held = hold(make_batch() if batch is None else batch)
    return Bench(model, held, ClosureProgram(lambda each: loss(model, each), held.batch))


def run_trial(
    model: nn.Module, providers: Sequence[Provider], batch: Any = None, **options: Any
) -> Result:
    loss = options.pop("loss", loss_of)
    chosen = FusedBackwardOptions(providers=tuple(providers), **{**QUICK, **options})
    return Trial(make_bench(model, batch, loss), chosen, Ranks()).run()


def verdicts(result: Result) -> dict[str, str]:
    return {row.kind: row.verdict for row in result.rows}


def reason_of(result: Result, verdict: str) -> str:
    (row,) = [row for row in result.rows if row.verdict == verdict]
    return row.reason


@contextlib.contextmanager
def patiently() -> Iterator[None]:
    """Wait for a thread that was left behind to notice."""
    yield
    time.sleep(0.05)


def forward_quick(self: nn.LayerNorm, input: Tensor) -> Tensor:  # noqa: A002
    return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function the name a module's forward must have."""
    function.__name__ = "forward"
    return function


quick = named(forward_quick)
