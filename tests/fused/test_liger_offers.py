"""What Liger's provider answers before anything of Liger is run."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused import liger
from gradwatch.fused.liger import Liger
from gradwatch.fused.site import Site
from tests.fused.lab import CLOCK, Net, Offers, SlowNorm, named, quick, run_trial

X = torch.randn(4, 8)


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    liger._refuse_import.cache_clear()
    yield
    liger._refuse_import.cache_clear()


def site_of(module: nn.Module, *inputs: Tensor) -> Site:
    return Site("module", (module,), inputs or (X,))


def test_on_a_cpu_it_refuses_and_liger_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(name: str) -> Any:
        raise AssertionError(name)

    monkeypatch.setattr(liger, "importlib", SimpleNamespace(import_module=never))
    for site in (
        site_of(nn.LayerNorm(8)),
        site_of(nn.CrossEntropyLoss(), X, torch.zeros(4, dtype=torch.int64)),
        Site("gate", (), (X, X), activation="silu"),
    ):
        assert "kernels run on CUDA devices" in str(Liger().propose(site))


@pytest.mark.parametrize(
    "site",
    [
        site_of(nn.Linear(8, 8)),
        site_of(nn.BatchNorm1d(8)),
        site_of(nn.LayerNorm((4, 8))),
        Site("gate", (), (X, X), activation="relu"),
        Site("Linear → act", (nn.Linear(8, 8),), (X,), activation="gelu"),
    ],
)
def test_of_a_place_that_liger_has_nothing_for_it_says_nothing(site: Site) -> None:
    assert Liger().propose(site) is None


def test_one_that_cannot_be_imported_is_refused_with_what_python_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel.ops", None)
    monkeypatch.setattr(liger, "refuse_call", lambda *_: None)
    offer = Liger().propose(site_of(nn.LayerNorm(8)))
    assert str(offer).startswith(
        "liger_kernel is installed and cannot be imported: ModuleNotFoundError"
    )


class Product(torch.autograd.Function):
    """A gate as Liger's: its backward writes over what it saved, unseen by autograd."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        gate, up = (each.detach() for each in ctx.saved_tensors)
        with torch.enable_grad():
            leaves = gate.clone().requires_grad_(), up.clone().requires_grad_()
            found = torch.autograd.grad(F.silu(leaves[0]) * leaves[1], leaves, grad)
        gate.data.copy_(found[0])
        up.data.copy_(found[1])
        return gate, up


@pytest.fixture
def _fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ops = SimpleNamespace(LigerSiLUMulFunction=Product)
    monkeypatch.setattr(liger, "refuse_call", lambda *_: None)
    monkeypatch.setattr(liger, "gated_eligible", lambda *_: None)
    monkeypatch.setattr(liger, "importlib", SimpleNamespace(import_module=lambda _name: ops))
    liger._function.cache_clear()
    yield
    liger._function.cache_clear()


@pytest.mark.usefixtures("_fake")
def test_what_a_gate_saved_is_not_written_over() -> None:
    pair = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    before = [each.detach().clone() for each in pair]
    offer = Liger().propose(Site("gate", (), pair, activation="silu"))
    assert callable(offer)
    product = offer(*pair).sum()
    first = [each.clone() for each in torch.autograd.grad(product, pair, retain_graph=True)]
    again = torch.autograd.grad(product, pair)
    assert all(torch.equal(*each) for each in zip(first, again, strict=True))
    assert all(torch.equal(own.detach(), old) for own, old in zip(pair, before, strict=True))


@pytest.mark.parametrize("mode", ["auto", "force"])
@pytest.mark.parametrize("first", ["gradwatch", "liger"])
def test_of_two_providers_the_faster_is_kept_or_the_first_that_is_forced(
    mode: str, first: str
) -> None:
    def half(self: nn.LayerNorm, x: Tensor) -> Tensor:
        CLOCK.spend(0.003)
        return quick(self, x)

    fakes = [Offers(SlowNorm, named(half), "gradwatch"), Offers(SlowNorm, quick, "liger")]
    providers = fakes if first == "gradwatch" else fakes[::-1]
    result = run_trial(Net(SlowNorm), providers, mode=mode)
    winner = first if mode == "force" else "liger"
    assert {each.provider for each in result.kept} == {winner}
    told = {row.provider: row.verdict for row in result.rows if row.provider}
    loser = ({"gradwatch", "liger"} - {winner}).pop()
    assert told[winner] == "kept"
    assert told[loser] == (
        "not tried" if mode == "force" else "replaced" if first != winner else "rolled back"
    )
