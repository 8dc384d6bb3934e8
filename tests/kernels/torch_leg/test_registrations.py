"""Every operation as torch sees it: schema, fake and trace fit what it does."""

from typing import Any

import pytest
import torch
from torch.library import opcheck

from gradwatch.kernels import (  # noqa: F401  register the operations
    batch_norm,
    bias_activation,
    column_sums,
    cross_entropy,
    dropout,
    gated,
    group_norm,
    norm,
)
from gradwatch.kernels._channels import mask_bytes

# Autograd stands outside the operations, in Functions: there is no autograd key to look for.
CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
FP32, BF16 = torch.float32, torch.bfloat16


def calls_of_batch_norm() -> dict[str, tuple[Any, ...]]:
    x, sliced = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 10)[..., ::2]
    last = x.contiguous(memory_format=torch.channels_last)
    w, mean, rstd = torch.randn(3), torch.randn(3), torch.rand(3)
    bits, every = torch.randint(0, 255, (mask_bytes(x),), dtype=torch.uint8), [True] * 4
    return {
        "forward": (x, None, w, w, mean, rstd, True, 0.1, 1e-5, True),
        "forward channels last": (last, x, w, w, None, None, True, 0.1, 1e-5, True),
        "forward sliced": (sliced, x, w, None, mean, rstd, False, 0.1, 1e-5, True),
        "backward": (x, x, w, w, mean, rstd, bits, True, True, every),
        "backward channels last": (x, last, w, w, mean, rstd, None, True, True, every),
        "backward of the input": (
            *(x, x, None, None, mean, rstd, None, False, True),
            [True, False, False, False],
        ),
    }


def calls_of_bias_activation() -> dict[str, tuple[Any, ...]]:
    z, mask = torch.randn(5, 40), torch.zeros(5, 2, dtype=torch.int32)
    return {
        "forward": (z, "relu"),
        "forward of gelu": (z, "gelu"),
        "backward": (z, None, mask, "relu", [True, True], BF16),
        "backward of z": (z, z + 1, None, "gelu_tanh", [True, False], FP32),
    }


def calls_of_cross_entropy() -> dict[str, tuple[Any, ...]]:
    x, t, c = torch.randn(5, 8), torch.arange(5), torch.rand(8)
    return {
        "forward": (x, t, None, -100, 0.0),
        "forward weighted": (x, t, c, -100, 0.1),
        "backward": (torch.rand(()), x, t, torch.rand(5), None, -100, 0.0),
        "backward weighted": (torch.rand(5), x, t, torch.rand(5), c, 3, 0.1),
    }


def calls_of_dropout() -> dict[str, tuple[Any, ...]]:
    x, seed = torch.randn(5, 8), torch.tensor([7])
    return {
        "forward": (x, None, None, seed, 0.5),
        "forward with bias and residual": (x, torch.randn(8), x + 1, seed, 0.1),
        "backward": (x, seed, 0.5, [True, True], BF16),
        "backward of the bias": (x, seed, 0.5, [False, True], FP32),
    }


def calls_of_gated() -> dict[str, tuple[Any, ...]]:
    g, u = torch.randn(5, 8), torch.randn(5, 8)
    return {
        "forward": (g, u, "silu"),
        "backward": (g, g + 1, u, "gelu", [True, True]),
        "backward of the gate": (g, g + 1, u, "gelu_tanh", [True, False]),
        "packed_backward": (g, torch.randn(5, 16), "silu", False),
    }


def calls_of_group_norm() -> dict[str, tuple[Any, ...]]:
    x, sliced = torch.randn(2, 4, 3, 5), torch.randn(2, 4, 3, 10)[..., ::2]
    last = x.contiguous(memory_format=torch.channels_last)
    w, mean, rstd, every = torch.randn(4), torch.randn(4), torch.rand(4), [True] * 3
    return {
        "forward": (x, w, w, 2, 1e-5, True, BF16),
        "forward channels last": (last, None, w, 2, 1e-5, False, FP32),
        "forward sliced": (sliced, w, None, 2, 1e-5, True, FP32),
        "forward in one pass": (torch.randn(1, 4, 16, 16), w, w, 2, 1e-5, True, FP32),
        "backward": (x, x, w, w, mean, rstd, 2, True, every),
        "backward channels last": (x, last, w, w, mean, rstd, 2, True, every),
        "backward of the input": (
            *(x, x, None, None, mean, rstd, 2, False),
            [True, False, False],
        ),
    }


def calls_of_norm() -> dict[str, tuple[Any, ...]]:
    x, w, mean, rstd = torch.randn(5, 8), torch.randn(8), torch.randn(5), torch.rand(5)
    return {
        "forward": (x, None, w, w, 8, 1e-5, True, BF16),
        "forward with residual": (x, x + 1, w, None, 8, 1e-5, True, FP32),
        "backward": (x, x, w, mean, rstd, None, 8, True, [True, True, True], FP32),
        "backward of the input": (x, x, w, mean, rstd, x, 8, True, [True, False, False], FP32),
    }


CALLS: dict[str, tuple[Any, ...]] = {
    f"{name}_{call}": arguments
    for name, calls in {
        "batch_norm": calls_of_batch_norm,
        "bias_activation": calls_of_bias_activation,
        "cross_entropy": calls_of_cross_entropy,
        "dropout": calls_of_dropout,
        "gated": calls_of_gated,
        "group_norm": calls_of_group_norm,
        "norm": calls_of_norm,
    }.items()
    for call, arguments in calls().items()
}


def operation_of(call: str) -> str:
    return call.split(maxsplit=1)[0]


@pytest.mark.parametrize("call", CALLS)
def test_schema_fake_and_trace_fit_the_operation(call: str) -> None:
    operation = getattr(torch.ops.gradwatch, operation_of(call)).default
    outcome = opcheck(operation, CALLS[call], test_utils=CHECKS)
    assert set(outcome.values()) == {"SUCCESS"}


def test_no_operation_is_left_out() -> None:
    names = torch._C._dispatch_get_all_op_names()
    ours = {name.removeprefix("gradwatch::") for name in names if name.startswith("gradwatch::")}
    assert ours == {operation_of(call) for call in CALLS}
