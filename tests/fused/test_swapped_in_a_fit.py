"""After a swap in a real fit: parameters, optimizer, state_dict, hooks and flags are the same."""

import copy
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gradwatch import FusedBackwardOptions
from gradwatch.callbacks import FusedBackward
from tests.fused.lab import QUICK, Offers, quick
from tests.kit import Calm, ResumableLoader, SavesAt, build, fit, make_samples

CALLS: list[str] = []


def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
    CALLS.append("fused")
    return quick(self, x)


class Normed(Calm):
    """Calm, with a second norm in front of the head."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Any = nn.Sequential(self.hidden, nn.LayerNorm(16))
        del self.bn  # which Calm does not use


class Looks(pl.Callback):
    """Notes, at each step, what the optimizer and the model hold."""

    def __init__(self) -> None:
        self.parameters: list[list[int]] = []
        self.groups: list[list[int]] = []
        self.swapped: list[bool] = []
        self.momenta: list[dict[int, Tensor]] = []
        self.keys: list[list[str]] = []

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *args: Any) -> None:
        (optimizer,) = trainer.optimizers
        groups: list[dict[str, Any]] = optimizer.param_groups
        trainable = [each for each in module.parameters() if each.requires_grad]
        self.parameters.append(sorted(map(id, trainable)))
        self.groups.append(sorted(id(each) for group in groups for each in group["params"]))
        self.swapped.append("forward" in vars(module.norm))
        state: Any = optimizer.state
        self.momenta.append({id(p): own["momentum_buffer"].clone() for p, own in state.items()})
        self.keys.append(list(module.state_dict()))


def fused(**options: Any) -> FusedBackward:
    chosen = {"mode": "force", "after_steps": 3, "providers": (Offers(nn.LayerNorm, forward),)}
    return FusedBackward(FusedBackwardOptions(**{**QUICK, **chosen, **options}))


def run(*callbacks: Any, make: Any = Normed, **options: Any) -> Any:
    CALLS.clear()
    module = build(make)
    fit(module, callbacks, ResumableLoader(make_samples()), **options)
    return module


def test_every_parameter_stays_the_one_object_that_the_optimizer_steps() -> None:
    looks = Looks()
    run(fused(), looks)
    assert looks.swapped[:3] == [False] * 3
    assert all(looks.swapped[3:])
    assert len(CALLS) > 20
    for own, stepped in zip(looks.parameters, looks.groups, strict=True):
        assert own == stepped == looks.parameters[0]
        assert len(set(stepped)) == len(stepped)


def test_momentum_goes_on_across_the_swap_as_in_a_run_without() -> None:
    looks, stock = Looks(), Looks()
    run(fused(), looks)
    run(stock)
    for own, other in zip(looks.momenta, stock.momenta, strict=True):
        for mine, theirs in zip(own.values(), other.values(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert any(float(each.abs().max()) > 0 for each in looks.momenta[3].values())


def test_keys_of_the_state_stay_in_their_order() -> None:
    looks = Looks()
    module = run(fused(), looks)
    stock = build(Normed)
    assert all(keys == list(stock.state_dict()) for keys in looks.keys)
    stock.load_state_dict(module.state_dict(), strict=True)
    module.load_state_dict(stock.state_dict(), strict=True)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("swapped_first", [True, False])
def test_a_checkpoint_of_either_run_resumes_in_the_other(
    swapped_first: bool, tmp_path: Path
) -> None:
    path = str(tmp_path / "middle.ckpt")
    whole = run()
    run(*([fused()] if swapped_first else []), SavesAt(6, path))
    resumed = run(*([] if swapped_first else [fused()]), ckpt_path=path)
    assert bool(CALLS) is not swapped_first
    pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
    for own, other in pairs:
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_hooks_of_the_user_fire_as_often_as_without_the_swap() -> None:
    def counts(*callbacks: Any) -> dict[str, int]:
        fired = {"pre": 0, "forward": 0, "backward": 0}

        class Hooks(pl.Callback):
            def on_train_batch_start(self, trainer: Any, module: Any, *args: Any) -> None:
                fired.update(dict.fromkeys(fired, 0))

            def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
                norm = pl_module.norm
                norm.register_forward_pre_hook(lambda *_: tick("pre"))
                norm.register_forward_hook(lambda *_: tick("forward"))
                norm.register_full_backward_hook(lambda *_: tick("backward"))

        def tick(name: str) -> None:
            fired[name] += 1

        run(*callbacks, Hooks())
        return fired

    swapped = counts(fused())
    assert CALLS
    assert swapped == counts() == {"pre": 1, "forward": 1, "backward": 1}


class Frozen(Normed):
    """One bias does not train, one norm is left in evaluation; others read its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.bias.requires_grad_(False)
        self.hidden[1].eval()
        self.read: list[tuple[bool, bool, int]] = []

    def on_train_start(self) -> None:
        self.hidden[1].eval()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        weight = self.norm.weight
        self.read.append((self.norm.bias.requires_grad, self.hidden[1].training, id(weight)))
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:Found 1 module")
def test_frozen_stays_frozen_evaluated_stays_evaluated_and_the_weight_is_the_same() -> None:
    start = build(Frozen)
    bias = start.norm.bias.detach().clone()
    module = run(fused(), make=Frozen)
    assert CALLS
    assert set(module.read) == {(False, False, id(module.norm.weight))}
    assert torch.equal(module.norm.bias, bias)
    assert module.norm.bias.grad is None


def test_the_very_same_modules_stand_there_afterwards_and_carry_nothing() -> None:
    module = build(Normed)
    parts = list(module.modules())[1:]  # on the module itself Lightning leaves marks of its own
    held = [set(vars(each)) for each in parts]
    CALLS.clear()
    fit(module, [fused()], ResumableLoader(make_samples()))
    assert CALLS
    assert [id(each) for each in module.modules()][1:] == [id(each) for each in parts]
    assert [set(vars(each)) for each in parts] == held


class Parametrized(Normed):
    """The weight of one norm is computed anew at each access."""

    def __init__(self) -> None:
        super().__init__()
        parametrize.register_parametrization(self.norm, "weight", nn.Softplus())


def test_a_parametrized_module_is_not_swapped_and_its_neighbour_is() -> None:
    looks = Looks()
    module = run(fused(), looks, make=Parametrized)
    assert not any(looks.swapped)
    assert CALLS
    assert parametrize.is_parametrized(module.norm)


class Copies(pl.Callback):
    """Averages weights as EMA does: on a copy that was made in the midst of the fit."""

    def __init__(self) -> None:
        self.copy: Any = None

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *args: Any) -> None:
        if trainer.global_step == 6:
            self.copy = copy.deepcopy(module.norm)


def test_a_copy_made_in_the_midst_computes_with_its_own_weights() -> None:
    copies = Copies()
    run(fused(), copies)
    x = torch.randn(3, 16)
    with torch.no_grad():
        copies.copy.weight.fill_(2.0)
        expected = nn.functional.layer_norm(x, (16,), copies.copy.weight, copies.copy.bias)
    torch.testing.assert_close(copies.copy(x), expected)
