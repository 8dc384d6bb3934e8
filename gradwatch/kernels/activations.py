"""Activations and their derivatives, to be inlined into the kernels that fuse them.

``gelu_tanh`` is written as ``x * sigmoid(2 z)``, which is ``x * (1 + tanh(z)) / 2`` without the
cancellation of ``1 + tanh`` far to the left. ReLU passes NaN on and has slope 0 at 0, as in torch.
"""

from gradwatch.kernels._triton import jit, tl

__all__ = ["activate", "differentiate"]

_ROOT_HALF = tl.constexpr(0.7071067811865476)
_DENSITY = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)
_TWO_BETA = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
_CUBIC = tl.constexpr(0.044715)


@jit()
def _double_argument(x: tl.tensor) -> tl.tensor:
    # Interpreted, a constant on the left of a product would make it one too.
    return (x + x * x * x * _CUBIC) * _TWO_BETA


@jit()
def _sigmoids(z: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    # sigmoid(z) and sigmoid(-z): subtracting the one from 1 would leave nothing of the other.
    e = tl.exp(-tl.abs(z))
    near = 1.0 / (1.0 + e)
    far = e * near
    return tl.where(z < 0.0, far, near), tl.where(z < 0.0, near, far)


@jit()
def activate(x: tl.tensor, ACT: tl.constexpr) -> tl.tensor:
    """Return the activation of x, in float32."""
    if ACT == "relu":
        y = tl.where(x <= 0.0, 0.0, x)
    elif ACT == "silu":
        y = x / (1.0 + tl.exp(-x))
    elif ACT == "gelu":
        y = x * (0.5 + 0.5 * tl.erf(x * _ROOT_HALF))
    else:
        y = x / (1.0 + tl.exp(-_double_argument(x)))
    return y


@jit()
def differentiate(x: tl.tensor, ACT: tl.constexpr) -> tl.tensor:
    """Return the derivative of the activation at x, in float32."""
    if ACT == "relu":
        slope = tl.where(x <= 0.0, 0.0, 1.0)
    elif ACT == "silu":
        s, rest = _sigmoids(x)
        slope = s * (1.0 + x * rest)
    elif ACT == "gelu":
        slope = 0.5 + 0.5 * tl.erf(x * _ROOT_HALF) + x * _DENSITY * tl.exp(-0.5 * x * x)
    else:
        s, rest = _sigmoids(_double_argument(x))
        # Their product first: far out it is 0 before what follows can overflow.
        slope = s + x * (s * rest) * ((x * x * _CUBIC * 3.0 + 1.0) * _TWO_BETA)
    return slope
