"""BatchNorm with residual and ReLU as torch sees it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradwatch.fused import batch_norm, batch_norm_add_relu, batch_norm_relu
from gradwatch.kernels import batch_norm as _  # noqa: F401  registers the operations
from gradwatch.kernels._channels import mask_bytes

X = torch.randn(2, 3, 4, 5)
LAST, SLICED = X.contiguous(memory_format=torch.channels_last), torch.randn(2, 3, 4, 10)[..., ::2]
W, MEAN, RSTD = torch.randn(3), torch.randn(3), torch.rand(3)
BITS = torch.randint(0, 255, (mask_bytes(X),), dtype=torch.uint8)
ALL = [True] * 4

CALLS: dict[str, tuple[Any, ...]] = {
    "batch_norm_forward": (X, None, W, W, MEAN, RSTD, True, 0.1, 1e-5, True),
    "batch_norm_forward channels last": (LAST, X, W, W, None, None, True, 0.1, 1e-5, True),
    "batch_norm_forward sliced": (SLICED, X, W, None, MEAN, RSTD, False, 0.1, 1e-5, True),
    "batch_norm_backward": (X, X, W, W, MEAN, RSTD, BITS, True, True, ALL),
    "batch_norm_backward channels last": (X, LAST, W, W, MEAN, RSTD, None, True, True, ALL),
    "batch_norm_backward of the input": (
        *(X, X, None, None, MEAN, RSTD, None, False, True),
        [True, False, False, False],
    ),
}

# Away from the corner of ReLU: differences must not straddle it.
RESIDUALS = 3.0 * torch.tensor([-1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0]).view(4, 2)
AFFINE = (torch.rand(2) + 0.5, 0.1 * torch.randn(2))
INPUTS = (torch.randn(4, 2), *AFFINE)
STATISTICS = (torch.randn(2), torch.rand(2) + 0.5)


def evaluated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return batch_norm(x, *STATISTICS, w, b)


def joined(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return batch_norm_add_relu(x, r, None, None, w, b, training=True)


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "batch_norm outside training": (evaluated, INPUTS),
    "batch_norm_add_relu": (joined, (INPUTS[0], RESIDUALS, *AFFINE)),
}


@pytest.mark.parametrize("call", CALLS)
def test_schema_fake_and_trace_fit_the_operation(
    call: str, check_registration: Callable[..., None]
) -> None:
    check_registration(call.split(maxsplit=1)[0], CALLS[call])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_and_their_gradients_are_those_of_the_forward(
    name: str, check_gradients: Callable[..., None]
) -> None:
    function, inputs = FUNCTIONS[name]
    check_gradients(function, inputs)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_gradient_penalty_has_the_stock_gradient(
    memory_format: torch.memory_format, check_penalty: Callable[..., None]
) -> None:
    x, r = torch.randn(2, 4, 12, 3, 3).unbind(0)
    x, r = (t.contiguous(memory_format=memory_format) for t in (x, r))
    w, b = torch.randn(12), torch.randn(12)

    def stock(x: Tensor, w: Tensor, b: Tensor, r: Tensor | float = 0.0) -> Tensor:
        return F.relu(F.batch_norm(x, None, None, w, b, training=True) + r)

    check_penalty(
        lambda x, w, b: batch_norm_relu(x, None, None, w, b, training=True), stock, (x, w, b)
    )
    check_penalty(
        lambda x, w, b, r: batch_norm_add_relu(x, r, None, None, w, b, training=True),
        stock, (x, w, b, r),
    )  # fmt: skip


# Dynamo itself instantiates the base class of Functions while it traces one.
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated")
def test_a_compiled_step_updates_the_running_statistics() -> None:
    results = []
    for compiled in (False, True):
        mean, var, leaf = torch.zeros(3), torch.ones(3), X.clone().requires_grad_()

        def step(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
            return batch_norm_add_relu(x, X, mean, var, training=True)

        run: Callable[..., Tensor] = step
        if compiled:
            run = torch.compile(step, fullgraph=True, backend="aot_eager")
        y = run(leaf, mean, var)
        (grad,) = torch.autograd.grad(y.sum(), leaf)
        results.append([y.detach(), grad, mean, var])
    torch.testing.assert_close(results[1], results[0])
    assert results[0][2].any()
