"""Linear with its activation as torch sees it, and Sequentials of such pairs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradwatch.fused import LAYERS, linear_relu, swap
from gradwatch.kernels._triton import launch


def test_a_second_derivative_stops_at_closed_gates_as_in_torch() -> None:
    grads = []
    for take in (linear_relu, lambda x, w, b: F.relu(F.linear(x, w, b))):
        x, b = torch.tensor([[1.0, -1.0]]).requires_grad_(), torch.zeros(2, requires_grad=True)
        y = take(x, torch.eye(2), b)
        dy = torch.tensor([[2.0, float("inf")]])
        grads.append(torch.autograd.grad(y, (x, b), dy, create_graph=True))
    torch.testing.assert_close(*grads)


def launches(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    seen: list[object] = []

    def counted(*args: Any, **constants: Any) -> None:
        seen.append(args[0])
        launch(*args, **constants)

    monkeypatch.setattr("gradwatch.kernels.bias_activation.launch", counted)
    call()
    return len(seen)


def test_every_pair_of_a_sequential_runs_as_one_and_the_rest_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relu, x = nn.ReLU(), torch.randn(4, 8)
    net = nn.Sequential(
        nn.Linear(8, 8), nn.GELU(approximate="tanh"), nn.LayerNorm(8), relu, nn.Linear(8, 6), relu,
        nn.Linear(6, 5, bias=False), relu, nn.Linear(5, 3),
    )  # fmt: skip
    stock = net(x)
    swap(net)
    assert launches(lambda: torch.testing.assert_close(net(x), stock), monkeypatch) == 3


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh()), "no Linear in it is followed by"),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)), "writes over its input"),
        (lambda: nn.Sequential(nn.Linear(8, 8, bias=False), nn.GELU()), "nothing to fuse with"),
        (lambda: nn.Sequential(nn.Linear(8, 8), swapped(nn.ReLU())), "has been replaced"),
        (lambda: hooked(0, "register_forward_hook"), "Linear carries a hook"),
        (lambda: hooked(1, "register_forward_pre_hook"), "ReLU carries a hook"),
        (lambda: hooked(0, "register_full_backward_hook"), "Linear carries a hook"),
        (lambda: hooked(1, "register_full_backward_pre_hook"), "ReLU carries a hook"),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()).double(), "input is torch.float32, its"),
    ],
)
def test_a_pair_without_proof_is_named_and_goes_the_stock_way(
    make: Callable[[], nn.Sequential], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = make(), torch.randn(4, 8)
    assert reason in str(LAYERS[nn.Sequential].eligible(net, x))
    x = x.to(next(net.parameters()).dtype)
    stock = net(x)
    swap(net)
    assert launches(lambda: torch.testing.assert_close(net(x), stock), monkeypatch) == 0


def swapped(module: nn.Module) -> nn.Module:
    module.forward = module.forward
    return module


def hooked(at: int, register: str) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    getattr(net[at], register)(lambda *arguments: None)
    return net


def test_a_hook_on_all_modules_fires_for_both_members_of_a_pair() -> None:
    net, fired = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), []
    swap(net)
    handle = nn.modules.module.register_module_forward_hook(lambda m, *rest: fired.append(type(m)))
    try:
        net(torch.randn(4, 8))
    finally:
        handle.remove()
    assert fired == [nn.Linear, nn.ReLU, nn.Sequential]


def test_whatever_a_sequential_may_carry_is_passed_on() -> None:
    net = nn.Sequential(nn.Identity(), nn.Identity())
    swap(net)
    assert net(("a", "b")) == ("a", "b")
    empty = nn.Sequential()
    swap(empty)
    assert empty("a") == "a"
