"""A fit through a block that was rewritten across its children, with everything else watching."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from tests.fused.lab import QUICK
from tests.fused.nets import CALLS, Chains, ResidualBlock
from tests.kit import Calm, build, fingerprint, fit, make_loader, watcher


class Residual(Calm):
    """A net whose norm, addition and activation lie in three modules."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.block = nn.Conv2d(1, 4, 1), ResidualBlock(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.block(self.widen(x)).mean((2, 3)))
        return y

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self(batch[0]), batch[1])


def test_a_fit_follows_the_stock_course_and_nothing_is_said_of_what_is_not_called() -> None:
    options: dict[str, Any] = {**QUICK, "mode": "force", "after_steps": 2, "providers": (Chains(),)}
    callback = FusedBackward(FusedBackwardOptions(**options), sinks=[MemorySink()])
    watching, sink = watcher()
    stock, swapped = build(Residual), build(Residual)
    course = fit(stock, [], make_loader(), val=make_loader(), max_epochs=2)
    own = fit(swapped, [watching, callback], make_loader(), val=make_loader(), max_epochs=2)
    kept = callback.parts[0].state_dict()["kept"]
    assert ["block", "BatchNorm2d → add → relu"] in [each[:2] for each in kept]
    assert CALLS.count("norm → add → relu") > 10
    runs = fingerprint(own, swapped), fingerprint(course, stock)
    torch.testing.assert_close(runs[0]["losses"], runs[1]["losses"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(runs[0]["weights"], runs[1]["weights"], rtol=1e-3, atol=1e-5)
    assert [each for each in sink.findings if each.severity != "info"] == []
    assert "forward" not in vars(swapped.block)


def test_it_is_put_on_again_in_a_resumed_fit() -> None:
    options: dict[str, Any] = {**QUICK, "mode": "force", "after_steps": 1, "providers": (Chains(),)}
    first = FusedBackward(FusedBackwardOptions(**options))
    fit(build(Residual), [first], make_loader(), val=make_loader(), max_epochs=1)
    again = FusedBackward(FusedBackwardOptions(**options | {"after_steps": 1000}))
    again.load_state_dict(first.state_dict())
    CALLS.clear()
    fit(build(Residual), [again], make_loader(), val=make_loader(), max_epochs=1)
    assert again.parts[0].state_dict()["kept"] == first.parts[0].state_dict()["kept"]
    assert CALLS.count("norm → add → relu") >= len(make_loader())
