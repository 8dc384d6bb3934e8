"""Causes of size: what grows past the largest number of its type, and what meets an infinity."""

from __future__ import annotations

from gradwatch.non_finite.cause_row import Row, names, of
from gradwatch.non_finite.clues import Clues
from gradwatch.non_finite.evidence import bare

EXPONENTIALS = names("exp exp2 expm1 sinh cosh")
# They pass the largest number only with large numbers: a pole is another matter.
GROWING = names(
    "mul mm bmm addmm addbmm baddbmm mv addmv dot convolution pow square prod cumprod sum cumsum "
    "add sub addcmul linear _to_copy copy var std mean linalg_vector_norm mse_loss"
)
LEAST_CALLS = 3
LEAST_GROWTH = 1.2
LIMITS = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.4e38, "float64": 1.8e308}


def _overflows(clues: Clues) -> bool:
    """Finite numbers went in and an infinity came out."""
    went_in = clues.fault.inputs
    return clues.kind == "Inf" and bool(went_in) and not any(each.bad for each in went_in)


def _grows(clues: Clues) -> bool:
    name = bare(clues.fault.name)
    return _overflows(clues) and (name in GROWING or name.endswith("_backward"))


def _narrow(clues: Clues) -> bool:
    return _grows(clues) and clues.fault.output.dtype == "float16"


def _limit(clues: Clues) -> str:
    dtype = clues.fault.output.dtype
    return f"{LIMITS.get(dtype, float('inf')):.6g}, the largest {dtype}"


def _recurs(clues: Clues) -> bool:
    grows = len(clues.peaks) >= LEAST_CALLS and clues.growth >= LEAST_GROWTH
    return _overflows(clues) and grows


def _recurrence(clues: Clues) -> str:
    what = "gradients" if clues.phase == "backward" else "values"
    return (
        f"{what} grow by {clues.growth:.3g} from one call to the next over {len(clues.peaks)} "
        f"calls, from {clues.peaks[0]:.3g} to {clues.peaks[-1]:.3g}, until they overflow"
    )


def _meet(clues: Clues) -> str:
    return f": {clues.constant}" if clues.constant else ""


def _zero_times_inf(clues: Clues) -> bool:
    infinite = any(each.plus_inf or each.minus_inf for each in clues.seen.inputs)
    return infinite and any(each.zeros for each in clues.seen.inputs)


RANGE: tuple[Row, ...] = (
    Row(
        name="exploding_recurrence",
        title="A recurrence that grows from call to call",
        evidence=_recurs,
        cause=_recurrence,
        remedy="clip the gradient norm, start recurrent weights orthogonal, use a gated cell, "
        "normalise the state, or cut the sequence shorter",
    ),
    Row(
        name="exp_overflow",
        title="exp of a large number",
        operations=EXPONENTIALS,
        evidence=_overflows,
        cause=lambda clues: (
            f"{clues.operation} overflows: an input reaches "
            f"{clues.fault.max_input:.4g}, and the result passes {_limit(clues)}"
        ),
        remedy="subtract the maximum first (softmax, logsumexp), or clamp the exponent",
    ),
    Row(
        name="half_overflow",
        title="An activation beyond the range of float16",
        phase="forward",
        evidence=_narrow,
        cause=lambda clues: (
            f"{clues.operation} overflows in half precision: inputs up to "
            f"{clues.fault.max_input:.4g} give a result beyond {_limit(clues)}"
        ),
        remedy="use bfloat16, run this layer in float32, or scale its input down",
    ),
    Row(
        name="loss_scale_overflow",
        title="The loss scale takes a gradient beyond float16",
        phase="backward",
        evidence=lambda clues: _narrow(clues) and clues.scale > 1,
        cause=lambda clues: (
            f"a gradient times the loss scale {clues.scale:,.6g} passes {_limit(clues)}"
        ),
        remedy="nothing if the scaler skips a few steps and settles; else a lower init_scale, a "
        "mean instead of a sum in the loss, or bfloat16",
    ),
    Row(
        name="half_gradient_overflow",
        title="A gradient beyond the range of float16",
        phase="backward",
        evidence=_narrow,
        cause=lambda clues: f"a gradient passes {_limit(clues)}, though the loss is not scaled",
        remedy="use bfloat16, a mean instead of a sum in the loss, or run this layer in float32",
    ),
    Row(
        name="activation_overflow",
        title="Numbers beyond the range of their type",
        evidence=_grows,
        cause=lambda clues: (
            f"{clues.operation or 'an operation'} of finite numbers up to "
            f"{clues.fault.max_input:.4g} passes {_limit(clues)}"
        ),
        remedy="normalise what goes in, lower the rate, or clip the gradient norm: the values "
        "have been growing",
    ),
    Row(
        name="zero_times_inf",
        title="0 × inf",
        operations=names("mul mm bmm addmm addbmm baddbmm matmul dot convolution"),
        phase="forward",
        evidence=_zero_times_inf,
        cause=lambda clues: (
            f"0 × inf is NaN: {clues.operation} {of(clues.seen.output)} meets an "
            f"infinity{_meet(clues)}"
        ),
        remedy="select with torch.where instead of multiplying by a mask of 0 and 1",
    ),
    Row(
        name="inf_minus_inf",
        title="inf − inf",
        operations=names("add sub sum cumsum mean mm bmm addmm baddbmm rsub"),
        phase="forward",
        evidence=lambda clues: any(each.plus_inf or each.minus_inf for each in clues.seen.inputs),
        cause=lambda clues: (
            f"inf − inf is NaN: {clues.operation} {of(clues.seen.output)} meets "
            f"infinities{_meet(clues)}"
        ),
        remedy="mask with a large finite value instead of inf, or leave masked rows out",
    ),
)
