"""Prove, measure, keep or roll back: the loop on models of which the answer is known."""

import math
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn import functional as F
from torch.nn.utils import parametrize

from gradwatch.errors import ConfigurationError
from gradwatch.fused import trial
from gradwatch.fused.bounds import Diagnosis
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.fused.providers import Site
from gradwatch.fused.rows import trial_table
from gradwatch.fused.trial import Trial
from gradwatch.fused.wardrobe import Wardrobe
from gradwatch.ranks import Ranks
from gradwatch.roofline.verdicts import LayerVerdict, VerdictKind
from tests.fused.lab import (
    CLOCK,
    QUICK,
    Net,
    Offers,
    SlowNorm,
    loss_of,
    make_batch,
    make_bench,
    named,
    patiently,
    quick,
    reason_of,
    run_trial,
    verdicts,
)
from tests.kit import differences, random_state


def late(self: nn.LayerNorm, x: Tensor) -> Tensor:
    """Be right, and slow."""
    CLOCK.spend(0.005)
    return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


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


def test_what_is_right_and_faster_is_kept() -> None:
    model = Net(SlowNorm)
    result = run_trial(model, [Offers(SlowNorm, quick)])
    assert [each.layer for each in result.kept] == ["blocks.0.norm", "blocks.1.norm"]
    first, together = (row for row in result.rows if row.verdict == "kept")
    assert first.comparison is not None
    assert first.comparison.high < 1
    assert first.comparison.after_seconds < first.comparison.before_seconds
    assert "less time" in first.reason
    assert (together.kind, together.layers) == ("together", ("all kept changes",))


def test_what_is_right_and_slower_is_rolled_back() -> None:
    result = run_trial(Net(), [Offers(nn.LayerNorm, named(late))])
    assert result.kept == ()
    assert verdicts(result) == {"LayerNorm": "rolled back"}
    assert "more time" in reason_of(result, "rolled back")


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


def test_two_providers_compete_and_the_faster_one_is_worn() -> None:
    def half(self: nn.LayerNorm, x: Tensor) -> Tensor:
        CLOCK.spend(0.003)
        return quick(self, x)

    providers = [Offers(SlowNorm, named(half), "half"), Offers(SlowNorm, quick, "quick")]
    result = run_trial(Net(SlowNorm), providers)
    assert {each.provider for each in result.kept} == {"quick"}
    told = [(row.provider, row.verdict) for row in result.rows]
    assert told[:2] == [("half", "replaced"), ("quick", "kept")]


def test_one_member_that_is_wrong_does_not_take_the_others_along() -> None:
    def sometimes(self: nn.LayerNorm, x: Tensor) -> Tensor:
        return quick(self, x) * (1.5 if self.eps > 1e-4 else 1.0)

    model: Any = Net()
    model.blocks[1].norm.eps = 1e-3
    result = run_trial(model, [Offers(nn.LayerNorm, named(sometimes))], mode="force")
    assert [each.layer for each in result.kept] == ["blocks.0.norm"]
    assert [(row.layers, row.verdict) for row in result.rows] == [
        (("blocks.1.norm",), "rejected"),
        (("blocks.0.norm",), "kept"),
    ]


class Treacherous:
    """Right on the trial's first calls of a layer, wrong later: only training shows it."""

    name = "treacherous"

    def __init__(self, guilty: nn.Module, calls: int) -> None:
        self.left, self.guilty = calls, guilty

    def propose(self, site: Site) -> Any:
        if type(site.module) is not nn.LayerNorm:
            return None

        def forward(module: nn.LayerNorm, x: Tensor) -> Tensor:
            if module is self.guilty:
                return quick(module, x) + 0.05 * x
            return quick(module, x)

        return forward


def test_a_swap_that_leads_training_astray_is_found_by_bisection() -> None:
    model: Any = Net()
    # Parity runs on copies, so that nothing but training meets the very module.
    result = run_trial(model, [Treacherous(model.blocks[1].norm, 0)], mode="force")
    assert [each.layer for each in result.kept] == ["blocks.0.norm"]
    (row,) = [row for row in result.rows if row.verdict == "rolled back"]
    assert row.layers == ("blocks.1.norm",)
    assert "of the way off the stock course" in row.reason


def test_changes_that_do_not_pay_together_are_all_rolled_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Net(SlowNorm)
    bench, taken = make_bench(model), [0]
    seconds = bench.seconds

    def tired(dress: Callable[[], object]) -> float:
        """Run as ever, until the kinds are done and the whole is measured."""
        taken[0] += 1
        time_taken = seconds(dress)
        worn = any("forward" in vars(each) for each in model.modules())
        return time_taken * (100 if worn and taken[0] > 16 else 1)

    monkeypatch.setattr(bench, "seconds", tired)
    options = FusedBackwardOptions(providers=(Offers(SlowNorm, quick),), **QUICK)
    result = Trial(bench, options, Ranks()).run()
    assert result.kept == ()
    assert [row.verdict for row in result.rows] == ["rolled back", "rolled back"]
    assert result.rows[0].reason == "together the kept changes are not faster"


def test_advice_tries_nothing() -> None:
    result = run_trial(Net(), [Offers(nn.LayerNorm, named(raising))], mode="advise")
    assert verdicts(result) == {"LayerNorm": "advised"}
    assert result.kept == ()


def test_small_inputs_are_left_alone() -> None:
    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], min_elements=1000)
    assert reason_of(result, "refused") == ("its inputs are small: 96 elements, under min_elements")


def verdict(layer: str, kind: VerdictKind) -> LayerVerdict:
    figures: dict[str, Any] = dict.fromkeys(LayerVerdict._fields, 0.0)
    told = {"layer": layer, "kind": kind, "gain_share": 0.125, "reason": f"{layer} is so"}
    return LayerVerdict(**figures | told)


def test_what_is_bound_by_arithmetic_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "blocks.0.norm": verdict("blocks.0.norm", "compute-bound"),
        "blocks.1.norm": verdict("blocks.1.norm", "bandwidth-bound"),
    }
    monkeypatch.setattr(trial, "diagnose", lambda *_: Diagnosis(verdicts=known))
    options = {"profile": True, "mode": "advise"}
    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], **options)
    assert [(row.layers, row.verdict, row.reason) for row in result.rows] == [
        (("blocks.0.norm",), "refused", "compute-bound: blocks.0.norm is so"),
        (("blocks.1.norm",), "advised",
         "can be tried with mode='auto', up to 12.5% of the step"),
    ]  # fmt: skip


def test_a_step_that_differentiates_its_gradients_is_refused() -> None:
    def penalised(model: nn.Module, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], loss=penalised, mode="force")
    assert reason_of(result, "refused") == (
        "the step differentiates its gradients (create_graph=True)"
    )


def test_one_that_imported_what_differentiates_is_found_out_as_well() -> None:
    def penalised(model: nn.Module, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_()
        (slope,) = grad(model(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    result = run_trial(Net(), [Offers(nn.LayerNorm, quick)], loss=penalised, mode="force")
    assert "create_graph=True" in reason_of(result, "refused")


def test_one_that_fails_in_the_last_check_is_rolled_back_and_the_others_stay() -> None:
    model: Any = Net()

    def unlucky(self: nn.LayerNorm, x: Tensor) -> Tensor:
        if self is model.blocks[0].norm:
            raise RuntimeError("out of registers")
        return quick(self, x)

    result = run_trial(model, [Offers(nn.LayerNorm, named(unlucky))], mode="force")
    assert [each.layer for each in result.kept] == ["blocks.1.norm"]
    assert reason_of(result, "rolled back") == "the step raised RuntimeError: out of registers"


def test_one_that_fails_while_it_is_measured_has_no_times() -> None:
    left = [10]

    def tiring(self: nn.LayerNorm, x: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("out of registers")
        return quick(self, x)

    result = run_trial(Net(SlowNorm), [Offers(SlowNorm, named(tiring))])
    (row,) = result.rows
    assert (row.verdict, row.reason) == (
        "rolled back",
        "the step raised RuntimeError: out of registers",
    )
    assert math.inf not in row.cells()


def test_without_a_finite_course_nothing_is_kept() -> None:
    def cliff(model: nn.Module, batch: Any) -> Tensor:
        loss = loss_of(model, batch)
        return loss if loss.detach() > start - 1e-5 else loss * float("nan")

    model, batch = Net(), make_batch()
    start = float(loss_of(model, batch).detach())
    result = run_trial(model, [Offers(nn.LayerNorm, quick)], batch, loss=cliff, mode="force")
    assert result.kept == ()
    reasons = {row.reason for row in result.rows}
    assert reasons == {"the stock course is not finite, so that there is no measure"}


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


def compiled(model: Any) -> None:
    model.blocks[0].norm.compile(backend="eager")
    model.blocks[1].norm.compile(backend="eager")


def parametrized(model: Any) -> None:
    for block in model.blocks:
        parametrize.register_parametrization(block.norm, "weight", nn.Softplus())


def replaced(model: Any) -> None:
    for block in model.blocks:
        block.norm.forward = quick.__get__(block.norm)


# Dynamo looks at what every input has.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (compiled, "it runs inside a compiled module"),
        (replaced, "its forward has been replaced already"),
    ],
)
def test_modules_that_must_be_left_alone_are_refused(
    prepare: Callable[[Net], None], reason: str
) -> None:
    model = Net()
    prepare(model)
    result = run_trial(model, [Offers(nn.LayerNorm, quick)], mode="force")
    assert result.kept == ()
    assert reason_of(result, "refused").startswith(reason)


def test_a_parametrized_module_is_not_the_class_it_was() -> None:
    model = Net()
    parametrized(model)
    assert run_trial(model, [Offers(nn.LayerNorm, quick)], mode="force").kept == ()


def test_a_forward_of_another_name_is_refused() -> None:
    def fast(self: nn.LayerNorm, x: Tensor) -> Tensor:
        return quick(self, x)

    result = run_trial(Net(), [Offers(nn.LayerNorm, fast)], mode="force")
    assert "not named 'forward'" in reason_of(result, "refused")


def test_what_is_not_tried_in_time_stays_as_it_is() -> None:
    result = run_trial(Net(SlowNorm), [Offers(SlowNorm, quick)], max_seconds=1e-9)
    assert reason_of(result, "not tried") == "the time for the trial was up"


def test_the_table_has_a_cell_for_each_column() -> None:
    result = run_trial(Net(SlowNorm), [Offers(SlowNorm, quick)])
    table = trial_table(result.rows, 7)
    assert (table.name, table.step) == ("trials", 7)
    assert all(len(row) == len(table.columns) for row in table.rows)
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert first["layer"] == "blocks.0.norm and 1 more"
    assert first["verdict"] == "kept"
    assert isinstance(first["before (ms)"], float)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "always"}, "mode must be one of 'auto', 'advise', 'force'"),
        ({"min_gain": 1.5}, r"min_gain lie in \[0, 1\)"),
        ({"after_steps": -1}, "after_steps must not be negative"),
        ({"pairs": 0}, "pairs must be a positive"),
        ({"providers": ("tritn",)}, "providers must be one of .*'torch', 'liger'; got 'tritn'"),
        ({"providers": (object(),)}, "a provider has a name and a method propose"),
        ({"providers": ("torch", "torch")}, "two providers have one name"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        FusedBackwardOptions(**options)
