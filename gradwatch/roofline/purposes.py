"""What a kernel is for, and whether it could be one with the next."""

from __future__ import annotations

import re

from gradwatch.flops import MOVES

# First match wins; the names are those of operations, which a CPU's kernels share.
_PURPOSES: tuple[tuple[str, str], ...] = (
    (r"nccl|gloo|all_?reduce|all_?gather|reduce_scatter", "gradients between processes"),
    (r"memcpy htod|memcpy.*host.*device", "batch or constant to the device"),
    (r"memcpy dtoh", "value to the host: the step waits for it"),
    (r"memcpy|memset", "memory moved or cleared"),
    (r"_foreach|_fused_adam|_fused_sgd|multi_tensor|addcdiv|addcmul|lerp", "optimizer update"),
    (r"convolution_backward", "gradients of a convolution: input and weight"),
    (r"conv", "convolution"),
    (r"attention.*backward", "gradients of attention"),
    (r"attention", "attention"),
    (r"^(mm|addmm|bmm|baddbmm|linear|matmul|mv|dot)$|gemm|cutlass|cublas", "matrix product"),
    (r"(layer|group|batch|rms|instance)_?norm.*backward", "gradients of a normalisation"),
    (r"(layer|group|batch|rms|instance)_?norm", "normalisation"),
    (r"softmax.*backward", "gradient of a softmax"),
    (r"softmax", "softmax"),
    (r"nll_loss|cross_entropy|mse_loss|loss", "loss"),
    (r"embedding.*backward", "gradient of an embedding table"),
    (r"embedding|index|gather|scatter", "rows picked or placed"),
    (r"pool", "pooling"),
    (r"threshold_backward|gelu_backward|silu_backward|.*sigmoid_backward|tanh_backward",
     "derivative of an activation"),
    (r"relu|gelu|silu|sigmoid|tanh|clamp|elu|mish|softplus|erf", "activation"),
    (r"bernoulli|dropout|random|normal_|uniform_", "random numbers"),
    (r"^sum$|^mean$|^amax$|^amin$|^var|^std|norm$", "sum over elements (a bias gradient, a mean)"),
    (r"clone|copy|_to_copy|contiguous|^to$", "copy: another layout or dtype"),
    (r"zero|fill|ones|full", "memory filled with a constant"),
    (r"cat|stack|slice|select|pad", "tensors cut or put together"),
    (r"add|sub", "addition (a residual, a bias, gradients that meet)"),
    (r"mul|div|neg|pow|sqrt|rsqrt|exp|log|where|masked", "elementwise arithmetic"),
)  # fmt: skip
_LIBRARY = re.compile(
    r"conv|attention|^(mm|addmm|bmm|baddbmm|linear|matmul|mv|dot)$|nccl|gloo|embedding|memcpy|pool"
)


def purpose_of(operation: str, kernel: str = "") -> str:
    """Say what a kernel is for.

    Args:
        operation: Operation that launched it.
        kernel: Its own name, asked where the operation says nothing.

    Examples:
        >>> purpose_of("addmm")
        'matrix product'
        >>> purpose_of("", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        'gradients between processes'
    """
    for name in (operation.lower(), kernel.lower()):
        for pattern, purpose in _PURPOSES:
            if name and re.search(pattern, name):
                return purpose
    return "other"


def could_be_one(operation: str, follower: str) -> bool:
    """Tell whether two operations could be one kernel.

    Elementwise work, reductions and moves can be; what a library's own kernel does (products,
    convolutions, attention, collectives) cannot be joined from outside.

    Args:
        operation: The first.
        follower: The one that reads its output at once; empty where none does.

    Examples:
        >>> could_be_one("native_layer_norm", "gelu"), could_be_one("addmm", "gelu")
        (True, False)
    """
    if not operation or not follower or (operation in MOVES and follower in MOVES):
        return False
    return not (_LIBRARY.search(operation) or _LIBRARY.search(follower))
