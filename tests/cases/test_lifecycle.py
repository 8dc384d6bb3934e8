"""Beginning, ending and breaking off: nothing of the watch stays on the model."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gradwatch import MemorySink
from gradwatch.callbacks import GradWatch

Run = Callable[..., Any]
Note = Callable[[str, str, str], None]


class Breaking(pl.LightningModule):
    """Raise whatever it is handed in the middle of a forward, a backward or a step."""

    def __init__(self, error: BaseException | None = None, where: str = "forward") -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.error, self.where = error, where

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        hidden = self.net[0](batch[0])
        if self.error is not None and batch_idx == 1:
            if self.where == "forward":
                raise self.error
            hidden.register_hook(self.fail)
        return (self.net[1:](hidden) - batch[1]).square().mean()

    def fail(self, gradient: Tensor) -> Tensor:
        assert self.error is not None
        raise self.error

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


# torch says of its own hooks that they are of little use on a first layer.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


def make_loader(count: int = 4) -> DataLoader[Any]:
    batches: Any = [(torch.randn(5, 4), torch.randn(5, 3)) for _ in range(count)]
    return DataLoader(batches, batch_size=None)


def hooks_of(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(vars(module)[kind]) for module in model.modules() for kind in kinds)


@pytest.mark.parametrize("hooks", ["sampled", "every_step", "module"])
def test_a_second_fit_tells_each_step_once(trainer: Run, note: Note, hooks: Any) -> None:
    module = Breaking()
    before = (hooks_of(module), set(vars(module)))
    for _ in range(2):
        sink = MemorySink()
        guard = GradWatch(console=False, record=False, sinks=[sink], backward_hooks=hooks)
        trainer(guard).fit(module, make_loader())
        assert [record.step for record in sink.records] == [0, 1, 2, 3]
        assert hooks_of(module) == before[0]
    note("d16", "one event a step in the second fit", "4 records in 4 steps, no hook left")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError("boom"), KeyboardInterrupt()])
@pytest.mark.parametrize("hooks", ["every_step", "module"])
def test_after_an_exception_no_hook_is_left(
    trainer: Run, note: Note, where: str, error: BaseException, hooks: Any
) -> None:
    module = Breaking(error, where)
    guard = GradWatch(console=False, record=False, backward_hooks=hooks)
    watching = trainer(guard)
    own = set(vars(watching.strategy))
    # Lightning ends the process on Ctrl-C, after telling its callbacks.
    with pytest.raises((type(error), SystemExit)):
        watching.fit(module, make_loader())
    assert hooks_of(module) == 0
    assert "training_step" not in set(vars(watching.strategy)) - own
    note("d16", "no hook left after an exception", f"none left after {type(error).__name__}")
