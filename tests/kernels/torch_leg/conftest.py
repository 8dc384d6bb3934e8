"""What every operation is asked by torch: schema, fakes, tracing, gradients and theirs."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

with warnings.catch_warnings():
    # Torch's compiler warns about torch itself when it is first imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch._inductor.compile_fx

Function = Callable[..., Any]

# Autograd stands outside the operations, in Functions: there is no autograd key to look for.
CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")

# Kernels compute in float32: its differences are good to about one part in a thousand.
TOLERANCE: dict[str, Any] = {"eps": 1e-2, "atol": 1e-2, "rtol": 1e-2}


def _registered(name: str, arguments: tuple[Any, ...]) -> None:
    operation = getattr(torch.ops.gradwatch, name).default
    outcome = opcheck(operation, arguments, test_utils=CHECKS)
    assert set(outcome.values()) == {"SUCCESS"}


def _gradients(function: Function, inputs: tuple[Tensor, ...]) -> None:
    leaves = tuple(t.detach().clone().requires_grad_() for t in inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Input #.* is not a double")
        assert torch.autograd.gradcheck(function, leaves, **TOLERANCE)
        assert torch.autograd.gradgradcheck(function, leaves, **TOLERANCE)


def _penalised(function: Function, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = function(*leaves)
    outputs = out if isinstance(out, tuple) else (out,)
    squares = [o.square().sum() for o in outputs]
    (slope,) = torch.autograd.grad(squares, leaves[:1], create_graph=True)
    (slope.norm() - 1).square().backward()
    return [t.grad for t in leaves if t.grad is not None]


def _penalties(ours: Function, stock: Function, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(
        _penalised(ours, inputs), _penalised(stock, inputs), rtol=1e-3, atol=1e-4
    )


@pytest.fixture
def check_registration() -> Callable[[str, tuple[Any, ...]], None]:
    """Name and arguments of an operation: schema, fake and trace must fit what it does."""
    return _registered


@pytest.fixture
def check_gradients() -> Callable[[Function, tuple[Tensor, ...]], None]:
    """A function and its inputs: first and second derivatives must be those of the forward."""
    return _gradients


@pytest.fixture
def check_penalty() -> Callable[[Function, Function, tuple[Tensor, ...]], None]:
    """Ours, stock and inputs: a penalty on the gradient must have the stock gradient."""
    return _penalties
