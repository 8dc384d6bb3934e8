"""The whole loop with the bundled kernels: proved, too slow when interpreted, right when forced."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from gradwatch.fused.providers import Bundled
from tests.fused.lab import QUICK, Net, Offers, quick, run_trial
from tests.fused.nets import ResidualBlock
from tests.kit import Calm, build, fingerprint, fit, make_loader


def test_kernels_are_proved_and_rolled_back_where_they_are_slower() -> None:
    result = run_trial(Net(), [Bundled()])
    assert result.kept == ()
    told = {row.kind: row for row in result.rows}
    assert {"Linear → gelu", "LayerNorm"} <= set(told)
    for kind in ("Linear → gelu", "LayerNorm"):
        assert told[kind].verdict == "rolled back"
        parity = told[kind].parity
        assert parity is not None
        assert parity.error < 1e-6
        assert "more time" in told[kind].reason


class Pairs(Calm):
    """A norm, a pair in a Sequential, and a loss that are all taken over."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.hidden(self.act(self.conv(x)).flatten(1)))
        return self.head(self.pair(h))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(self(batch[0]), batch[1])
        self.losses.append(loss.detach().clone())
        return loss


def test_forced_swaps_follow_the_stock_course_to_the_end() -> None:
    module, stock, sink = build(Pairs), build(Pairs), MemorySink()
    options = FusedBackwardOptions(**{**QUICK, "mode": "force", "after_steps": 1})
    callback = FusedBackward(options, sinks=[sink])
    runs = [
        fingerprint(fit(each, own, make_loader(), max_epochs=1), each)
        for each, own in ((stock, []), (module, [callback]))
    ]
    kept = callback.parts[0].state_dict()["kept"]
    assert [(layer, kind) for layer, kind, _ in kept] == [
        ("pair", "Linear → relu"), ("norm", "LayerNorm"), ("loss", "CrossEntropyLoss"),
    ]  # fmt: skip
    assert not torch.equal(runs[0]["losses"][-1], torch.zeros(()))
    for own, other in zip(runs[1]["losses"], runs[0]["losses"], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


class Gate(nn.Module):
    """What a decoder's MLP does."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Basic(nn.Module):
    """Convolution, norm, addition, activation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)) + x)


class Grouped(nn.Module):
    """A norm of groups with the activation diffusion models put behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.silu(self.norm(x)))


@pytest.mark.parametrize(
    ("make", "shape", "kind"),
    [
        (Gate, (4, 8), "silu gate"),
        (Basic, (2, 2, 3, 3), "BatchNorm2d → add → relu"),
        (Grouped, (2, 4, 3, 3), "GroupNorm → silu"),
        # Its norm lies in a child of a child.
        (lambda: ResidualBlock(2), (2, 2, 3, 3), "BatchNorm2d → add → relu"),
    ],
)
def test_a_chain_runs_as_one_kernel(make: Any, shape: tuple[int, ...], kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    block = make()
    for each in block.modules():
        if isinstance(each, nn.BatchNorm2d):
            # As after some steps: the mean of a few numbers alone may be all rounding.
            nn.init.constant_(each.get_buffer("running_mean"), 0.5)
    result = run_trial(
        nn.Sequential(nn.Identity(), block), [Bundled()], (x, None), mode="force",
        loss=lambda model, batch: model(batch[0]).square().mean(), regression_steps=1,
    )  # fmt: skip
    assert ("1", kind) in [(each.layer, each.kind) for each in result.kept]


def test_two_providers_are_both_proved_where_both_offer() -> None:
    providers: list[Any] = [Bundled(), Offers(nn.LayerNorm, quick)]
    result = run_trial(nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), providers,
                       mode="force")  # fmt: skip
    told = [(row.provider, row.verdict) for row in result.rows if row.kind == "LayerNorm"]
    assert told == [("gradwatch", "kept"), ("lab", "not tried")]
