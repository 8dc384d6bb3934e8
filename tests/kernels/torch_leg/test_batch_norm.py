"""BatchNorm with residual and ReLU as torch sees it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradwatch.fused import batch_norm_add_relu

X = torch.randn(2, 3, 4, 5)


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
