"""Models that must not be swapped, or not while they do what they do: each with its reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from gradwatch.fused.bench import Bench
from gradwatch.fused.layout import ChannelsLast
from gradwatch.fused.providers import Bundled
from gradwatch.fused.sharded import refuse_model
from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import QUICK, Net, Offers, loss_of, make_batch, quick, run_trial
from tests.kit import Calm, build, fit

TWICE = "the step differentiates its gradients (create_graph=True)"


def slope_of(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = model(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y, slope


def wgan_gp(model: nn.Module, batch: Any) -> Tensor:
    """Gulrajani et al. 2017: the slope between real and made samples is held at one."""
    y, slope = slope_of(model, 0.3 * batch[0] + 0.7 * batch[0].flip(0))
    return y.mean() + (slope.norm(dim=1) - 1).square().mean()


def r1(model: nn.Module, batch: Any) -> Tensor:
    """Mescheder et al. 2018: the slope at real samples is held at zero."""
    y, slope = slope_of(model, batch[0])
    return y.square().mean() + 0.5 * slope.square().sum(1).mean()


def maml(model: nn.Module, batch: Any) -> Tensor:
    """Finn et al. 2017: the loss after one inner step, differentiated through that step."""
    weights = dict(model.named_parameters())
    inner = loss_of(model, batch)
    slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
    moved = {name: w - 0.1 * s for (name, w), s in zip(weights.items(), slopes, strict=True)}
    y = torch.func.functional_call(model, moved, (batch[0],))
    return nn.functional.cross_entropy(y, batch[1])


def sharpness(model: nn.Module, batch: Any) -> Tensor:
    """The norm of the gradient itself is made small, in the backward's own graph."""
    loss = loss_of(model, batch)
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    penalty: Tensor = sum((each.square().sum() for each in slopes), start=torch.zeros(()))
    return loss + 0.1 * penalty


@pytest.mark.parametrize("loss", [wgan_gp, r1, maml, sharpness])
def test_a_step_that_differentiates_its_gradients_is_not_swapped(
    loss: Callable[[nn.Module, Any], Tensor],
) -> None:
    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], loss=loss, mode="force")
    assert result.kept == ()
    assert {(row.verdict, row.reason) for row in result.rows} == {("refused", TWICE)}


def test_a_penalty_that_comes_after_the_trial_has_the_right_second_derivatives() -> None:
    """Lazy regularisation: only every so many steps are penalised, and the trial saw another."""
    model, stock, batch = Net(), Net(), make_batch()
    stock.load_state_dict(model.state_dict())
    kept = run_trial(model, [Offers(nn.LayerNorm, quick)], batch, mode="force").kept
    assert len(kept) == 2
    Wardrobe().wear(kept)
    for each in (model, stock):
        r1(each, batch).backward()
    for own, other in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


class AnyNorm:
    """Offers its forward for whatever is called a norm, scripted or not."""

    name = "any"

    def propose(self, site: Any) -> Any:
        name = getattr(site.module, "original_name", type(site.module).__name__)
        return quick if name == "LayerNorm" else None


def script(module: nn.Module) -> Any:
    return torch.jit.script(module)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_member_is_refused_and_the_others_are_tried() -> None:
    model: Any = Net()
    model.blocks[0].norm = script(model.blocks[0].norm)
    result = run_trial(model, [AnyNorm()], mode="force")
    assert [each.layer for each in result.kept] == ["blocks.1.norm"]
    told = [(row.layers, row.kind, row.reason) for row in result.rows if row.verdict == "refused"]
    assert told == [
        (("blocks.0.norm",), "LayerNorm", "it is scripted: its forward is not Python's")
    ]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_block_is_told_once_and_not_for_each_of_its_members() -> None:
    model: Any = Net()
    model.blocks = script(model.blocks)
    result = run_trial(model, [AnyNorm()], mode="force")
    assert result.kept == ()
    told = [(row.layers, row.kind) for row in result.rows if row.verdict == "refused"]
    assert told == [(("blocks",), "Sequential")]


def test_synchronised_batch_norm_is_left_alone_with_its_reason() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.SyncBatchNorm(8), nn.Linear(8, 3))
    result = run_trial(model, [Bundled()], mode="force")
    (row,) = [row for row in result.rows if row.kind == "SyncBatchNorm"]
    assert (row.layers, row.verdict) == (("1",), "refused")
    assert row.reason == "its statistics are summed over devices, which no kernel here does"
    assert "forward" not in vars(model[1])


def test_dropout_is_left_alone_with_its_reason() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.2), nn.Linear(8, 3))
    (row,) = [row for row in run_trial(model, [Bundled()]).rows if row.kind == "Dropout"]
    assert (row.verdict, row.reason) == ("refused", "another mask would be another training")


@pytest.mark.parametrize("mark", ["_fsdp_flattened", "ds_id"])
def test_weights_cut_up_by_a_wrapper_are_known_by_what_it_leaves_on_them(mark: str) -> None:
    model = nn.Linear(2, 2)
    assert refuse_model(model) == ""
    setattr(model.weight, mark, 1)
    assert "its parameters are sharded" in refuse_model(model)


def test_a_sharded_model_is_refused_before_anything_of_it_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    touched: list[object] = []
    monkeypatch.setattr(Bench, "__init__", lambda *args, **_: touched.append(args))
    sink, module = MemorySink(), build(Calm)
    module.norm.weight._fsdp_flattened = True
    options = {**QUICK, "after_steps": 1, "providers": (Offers(nn.LayerNorm, quick),)}
    fit(module, [FusedBackward(FusedBackwardOptions(**options), sinks=[sink])])
    (finding,) = sink.findings
    assert finding.summary.startswith("no fused layer was tried: its parameters are sharded")
    assert (touched, sink.tables) == ([], [])


def test_a_convolution_of_one_channel_has_no_other_layout() -> None:
    assert ChannelsLast(nn.Conv2d(1, 4, 1)).layers == ()
