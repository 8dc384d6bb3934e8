"""Whatever a trial meets, the training is afterwards the same bits."""

import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import (
    Net,
    Offers,
    SlowNorm,
    loss_of,
    make_batch,
    named,
    patiently,
    quick,
    run_trial,
)
from tests.kit import differences, random_state


def slightly_off(self: nn.LayerNorm, x: Tensor) -> Tensor:
    y = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
    return y + 0.01 * (y - y.detach())


def raising(self: nn.LayerNorm, x: Tensor) -> Tensor:
    raise RuntimeError("no kernel image is available")


def hanging(self: nn.LayerNorm, x: Tensor) -> Tensor:
    while True:
        time.sleep(0.01)


def state_of(model: nn.Module) -> dict[str, Any]:
    return {
        "weights": {name: each.clone() for name, each in model.state_dict().items()},
        "gradients": {n: None if p.grad is None else p.grad.clone()
                      for n, p in model.named_parameters()},
        "own": {n: sorted(vars(m)) for n, m in model.named_modules()},
        "trains": [each.requires_grad for each in model.parameters()],
        **random_state(),
    }  # fmt: skip


def same_gradients(before: dict[str, Any], after: dict[str, Any]) -> bool:
    pairs = zip(before["gradients"].values(), after["gradients"].values(), strict=True)
    return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (slightly_off, "its gradient of weight is 1.0e-02 off, the stock one"),
        (raising, "it raised RuntimeError: no kernel image is available"),
        (hanging, "did not come back within 0.3 s"),
    ],
)
def test_what_is_wrong_is_rejected_and_training_does_not_notice(
    forward: Callable[..., Any], reason: str
) -> None:
    model, batch = Net(), make_batch()
    loss_of(model, batch).backward()
    before = state_of(model)
    options = {"mode": "force", "compile_seconds": 0.3 if forward is hanging else 20.0}
    with patiently():
        result = run_trial(model, [Offers(nn.LayerNorm, named(forward))], batch, **options)
    assert result.kept == ()
    with pytest.raises(AssertionError, match=reason):
        assert not result.rows[0].reason, result.rows[0].reason
    after = state_of(model)
    assert same_gradients(before, after)
    assert differences({**before, "gradients": 0}, {**after, "gradients": 0}) == []


class Noisy(nn.Module):
    """Draws random numbers, keeps statistics and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.norm, self.drop, self.head = SlowNorm(64), nn.Dropout(0.4), nn.Linear(64, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.bn(self.conv(x + torch.rand_like(x))).flatten(1)
        return self.head(self.drop(self.norm(h)))


@pytest.mark.parametrize("mode", ["auto", "advise", "force"])
def test_the_training_state_is_the_same_bits_after_a_trial(mode: str) -> None:
    torch.manual_seed(0)
    model = Noisy()
    batch = torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 2, 0])
    loss_of(model, batch).backward()
    gradients = [id(each.grad) for each in model.parameters()]
    before, kept_batch = state_of(model), batch[0].clone()
    run_trial(model, [Offers(SlowNorm, quick)], batch, mode=mode, profile=mode == "auto")
    after = state_of(model)
    assert same_gradients(before, after)
    assert differences({**before, "gradients": 0}, {**after, "gradients": 0}) == []
    assert [id(each.grad) for each in model.parameters()] == gradients
    assert torch.equal(batch[0], kept_batch)
    assert model.calls == 1


def test_an_interrupted_trial_leaves_the_model_as_it_was() -> None:
    model, batch, calls = Net(SlowNorm), make_batch(), [0]
    loss_of(model, batch).backward()
    before = state_of(model)

    def interrupted(each: nn.Module, batch: Any) -> Tensor:
        calls[0] += 1
        if calls[0] == 12:
            raise KeyboardInterrupt
        return loss_of(each, batch)

    with pytest.raises(KeyboardInterrupt):
        run_trial(model, [Offers(SlowNorm, quick)], batch, loss=interrupted)
    after = state_of(model)
    assert same_gradients(before, after)
    assert differences({**before, "gradients": 0}, {**after, "gradients": 0}) == []


def test_a_model_that_was_pickled_in_its_swaps_can_be_tried_again() -> None:
    model = Net()
    wardrobe = Wardrobe()
    wardrobe.wear(run_trial(model, [Offers(nn.LayerNorm, quick)], mode="force").kept)
    loaded = pickle.loads(pickle.dumps(model))  # noqa: S301 - its own
    kept = run_trial(loaded, [Offers(nn.LayerNorm, quick)], mode="force").kept
    assert [each.layer for each in kept] == ["blocks.0.norm", "blocks.1.norm"]
