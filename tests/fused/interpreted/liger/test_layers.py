"""Liger's layers are the stock ones: in a trial, and at calls that no trial has seen."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.liger import Liger
from gradwatch.fused.operation import Function
from gradwatch.fused.providers import Offer
from gradwatch.fused.site import Site
from tests.fused.lab import named, run_trial

WIDTH = 16


class Gate(nn.Module):
    """What a decoder's MLP does."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Split(nn.Module):
    """Puts channels behind a batch, for a norm of groups."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), 4, 2, 2)


def tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def curved(model: nn.Module, batch: Any) -> Tensor:
    """Ask each output for something else: a norm's gradient at its own output is rounding only."""
    return model(batch[0]).sin().mean()


def forced(layer: nn.Module, *before: nn.Module, **options: Any) -> list[tuple[str, str, str]]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *before, layer)
    options = {"loss": curved, "regression_steps": 1} | options
    rows = run_trial(model, [Liger()], mode="force", **options).rows
    return [(row.kind, row.verdict, row.reason) for row in rows]


@pytest.mark.parametrize(
    ("layer", "before", "kind"),
    [
        (nn.RMSNorm(WIDTH), (), "RMSNorm"),
        (nn.RMSNorm(WIDTH, eps=1e-6, elementwise_affine=False), (), "RMSNorm"),
        (nn.LayerNorm(WIDTH), (), "LayerNorm"),
        (nn.LayerNorm(WIDTH, bias=False), (), "LayerNorm"),
        (nn.GroupNorm(2, 4), (Split(),), "GroupNorm"),
        (Gate(), (), "silu gate"),
        (Gate(tanh), (), "gelu_tanh gate"),
    ],
)
def test_a_layer_is_proved_and_worn(
    layer: nn.Module, before: tuple[nn.Module, ...], kind: str
) -> None:
    assert forced(layer, *before) == [(kind, "kept", "forced")]


@pytest.mark.parametrize(
    ("layer", "before", "reason"),
    [
        (nn.LayerNorm(WIDTH, elementwise_affine=False), (), "Liger's LayerNorm has a weight"),
        (nn.GroupNorm(2, 4, affine=False), (Split(),), "Liger's GroupNorm has weight and bias"),
        (Gate(F.gelu), (), "Liger's GeGLU is that of the tanh approximation"),
    ],
)
def test_what_liger_does_not_have_is_refused(
    layer: nn.Module, before: tuple[nn.Module, ...], reason: str
) -> None:
    assert [(verdict, told) for _, verdict, told in forced(layer, *before)] == [("refused", reason)]


LOSSES = [
    nn.CrossEntropyLoss(),
    nn.CrossEntropyLoss(ignore_index=1, label_smoothing=0.1),
    nn.CrossEntropyLoss(torch.tensor([0.5, 1.0, 2.0]), reduction="sum"),
    nn.CrossEntropyLoss(torch.tensor([0.5, 1.0, 2.0]), label_smoothing=0.2),
    nn.CrossEntropyLoss(reduction="none"),
]


class Judged(nn.Module):
    """A head and its loss."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.head, self.loss = nn.Linear(WIDTH, 3), loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.head(x), target)


# Of lanes beyond the last class; the first call has a thread, and numpy's settings, of its own.
@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply:RuntimeWarning")
@pytest.mark.parametrize("loss", LOSSES)
def test_a_cross_entropy_is_proved_and_worn(loss: nn.Module) -> None:
    result = run_trial(
        Judged(loss), [Liger()], mode="force", regression_steps=1,
        loss=lambda model, batch: model(*batch).mean(),
    )  # fmt: skip
    assert [(row.kind, row.verdict) for row in result.rows] == [("CrossEntropyLoss", "kept")]


class Raw:
    """Liger's functions as they come, offered by somebody who trusts them."""

    name = "raw"

    def propose(self, site: Site) -> Offer:
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
        from liger_kernel.ops.geglu import LigerGELUMulFunction
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        def loss(_self: nn.Module, logits: Tensor, target: Tensor) -> Any:
            return LigerCrossEntropyFunction.apply(logits, target, None)[0]

        if site.pattern == "gate":
            function = LigerSiLUMulFunction if site.activation == "silu" else LigerGELUMulFunction
            return function.apply
        return named(loss) if type(site.module) is nn.CrossEntropyLoss else None


@pytest.mark.parametrize("model", [Gate(), Gate(tanh), Judged(nn.CrossEntropyLoss())])
def test_liger_as_it_comes_writes_into_its_inputs_and_is_rejected(model: nn.Module) -> None:
    judged = isinstance(model, Judged)
    result = run_trial(
        nn.Sequential(model) if not judged else model, [Raw()], mode="force",
        loss=(lambda each, batch: each(*batch)) if judged else curved,
    )  # fmt: skip
    assert [(row.verdict, row.reason) for row in result.rows] == [
        ("rejected", "it writes into its input")
    ]


def offered(site: Site) -> Function:
    offer = Liger().propose(site)
    assert callable(offer), offer
    return offer


def loss_function(loss: nn.Module, logits: Tensor, target: Tensor) -> Function:
    return offered(Site("module", (loss,), (logits, target)))


def test_an_accuracy_taken_after_the_loss_is_that_of_the_logits() -> None:
    logits, target = torch.randn(6, 3, requires_grad=True), torch.arange(6) % 3
    before, loss = logits.detach().clone(), nn.CrossEntropyLoss()
    loss_function(loss, logits, target)(loss, logits, target).backward()
    assert torch.equal(logits.detach(), before)
    assert logits.grad is not None
    stock = torch.autograd.functional.jacobian(lambda x: F.cross_entropy(x, target), before)
    torch.testing.assert_close(logits.grad, stock)


def gradients(output: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Take gradients of a graph that is kept; copies, for what is handed out may be a buffer."""
    found = torch.autograd.grad(output, inputs, retain_graph=True)
    return [each.clone() for each in found]


def same_again(output: Tensor, *inputs: Tensor) -> bool:
    pairs = zip(gradients(output, inputs), gradients(output, inputs), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_kept_graph_of_a_loss_gives_the_same_gradients_again(scale: float) -> None:
    logits, target = torch.randn(6, 3, requires_grad=True), torch.arange(6) % 3
    loss = nn.CrossEntropyLoss()
    value = loss_function(loss, logits, target)(loss, logits, target)
    assert same_again(value * scale, logits)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_kept_graph_of_a_gate_gives_the_same_gradients_again(activation: str) -> None:
    pair = torch.randn(6, 3, requires_grad=True), torch.randn(6, 3, requires_grad=True)
    gate = offered(Site("gate", (), pair, activation=activation))
    assert same_again(gate(*pair).sum(), *pair)


def norm_function(norm: nn.Module, x: Tensor) -> Function:
    return offered(Site("module", (norm,), (x,)))


def test_who_differentiates_twice_is_told_so_instead_of_given_wrong_numbers() -> None:
    norm, x = nn.RMSNorm(WIDTH), torch.randn(2, WIDTH, requires_grad=True)
    y = norm_function(norm, x)(norm, x)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.square().sum().backward()


def test_a_mean_over_no_target_is_no_number() -> None:
    logits, target = torch.randn(2, 3, requires_grad=True), torch.full((2,), -100)
    loss = nn.CrossEntropyLoss()
    value = loss_function(loss, logits, target)(loss, logits, target)
    assert value.isnan()
    (own,) = torch.autograd.grad(value, logits)
    (stock,) = torch.autograd.grad(loss(logits, target), logits)
    assert torch.equal(own.nan_to_num(7), stock.nan_to_num(7))


X = torch.randn(2, WIDTH)


@pytest.mark.parametrize("call", [
    lambda norm: norm(**{"x" if type(norm) is nn.RMSNorm else "input": X}),
    lambda norm: norm(torch.randn(0, WIDTH)),
    lambda norm: norm.double()(X.double()),
    lambda norm: torch.func.vmap(norm)(X.unsqueeze(1)),
])  # fmt: skip
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_a_call_that_liger_cannot_take_goes_the_stock_way(
    kind: Any, call: Callable[[nn.Module], Tensor]
) -> None:
    worn, stock = kind(WIDTH), kind(WIDTH)
    worn.forward = norm_function(worn, X).__get__(worn)
    assert torch.equal(call(worn), call(stock))


def test_losses_that_liger_cannot_take_go_the_stock_way() -> None:
    worn = nn.CrossEntropyLoss()
    logits, target = torch.randn(6, 3), torch.arange(6) % 3
    function = loss_function(worn, logits, target)
    image, labels = torch.randn(2, 3, 4), torch.zeros(2, 4, dtype=torch.int64)
    assert torch.equal(function(worn, image, labels), F.cross_entropy(image, labels))
    shares = torch.rand(6, 3)
    assert torch.equal(function(worn, logits, shares), F.cross_entropy(logits, shares))


def test_a_copy_of_a_swapped_layer_computes_with_its_own_weights() -> None:
    norm = nn.RMSNorm(WIDTH)
    norm.forward = norm_function(norm, X).__get__(norm)  # type: ignore[method-assign]
    twin = copy.deepcopy(norm)
    with torch.no_grad():
        twin.weight.mul_(2)
        torch.testing.assert_close(twin(X), 2 * norm(X))
