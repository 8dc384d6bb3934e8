"""Causes in operations that are not defined, or not differentiable, everywhere."""

from __future__ import annotations

from gradwatch.non_finite.cause_row import Row, names, of, share
from gradwatch.non_finite.clues import Clues

LOGS = names("log log2 log10 log1p")
ARCS = names("acos asin arccos arcsin")
EDGES = names("atanh erfinv logit")


def _log_edge(clues: Clues) -> float:
    return -1.0 if clues.operation == "log1p" else 0.0


def _at_log_edge(clues: Clues) -> bool:
    return clues.kind == "Inf" and clues.seen.input(0).low == _log_edge(clues)


def _zeros(clues: Clues) -> bool:
    return clues.seen.input(0).zeros > 0


def _negative(clues: Clues) -> bool:
    return clues.seen.input(0).low < 0


def _at_edge(clues: Clues) -> bool:
    return clues.seen.input(0).peak == 1


def _exponent(clues: Clues) -> float:
    return clues.seen.numbers[-1] if clues.seen.numbers else float("nan")


def _power(clues: Clues) -> str:
    exponent = f"{_exponent(clues):g}" if clues.seen.numbers else "an exponent below 1"
    return f"0 ** {exponent}: {share(clues.seen.input(0).zeros, clues.seen.input(0), 'exactly 0')}"


def _divisor(clues: Clues) -> str:
    last = len(clues.seen.inputs) - 1
    return " in ".join(filter(None, (of(clues.seen.input(last)), clues.path_of(last))))


def _log_of_zero(clues: Clues) -> str:
    read = clues.seen.input(0)
    if clues.operation == "log1p":
        return f"log1p of -1: the smallest of {read.size:,} inputs is exactly -1"
    return f"{clues.operation} of 0: {share(read.zeros, read, 'exactly 0')}"


def _outside(clues: Clues) -> str:
    read = clues.seen.input(0)
    return (
        f"{clues.operation} is not defined for all of its input {of(read)}: min {read.low:.4g}, "
        f"max {read.high:.4g}"
    )


DOMAIN: tuple[Row, ...] = (
    Row(
        name="p_log_p",
        title="p · log p at p = 0",
        operations=names("log log2 log10 xlogy"),
        evidence=lambda clues: (
            _zeros(clues)
            and (clues.operation == "xlogy" or any(each.shares for each in clues.consumers))
        ),
        cause=lambda clues: (
            "p · log p at p = 0: "
            + share(clues.seen.input(0).zeros, clues.seen.input(0), "exactly 0")
            + ", and 0 · -inf is NaN"
        ),
        remedy="take log p from log_softmax, or clamp p from below before the log",
    ),
    Row(
        name="log_of_zero",
        title="Logarithm of 0",
        operations=LOGS,
        phase="forward",
        evidence=_at_log_edge,
        cause=_log_of_zero,
        remedy="clamp the input from below, or work with log-probabilities (log_softmax, "
        "logsigmoid)",
    ),
    Row(
        name="log_of_negative",
        title="Logarithm of a negative number",
        operations=LOGS,
        phase="forward",
        evidence=lambda clues: clues.kind == "NaN" and clues.seen.input(0).low < _log_edge(clues),
        cause=_outside,
        remedy="keep the input positive: softplus or exp before it, or clamp it",
    ),
    Row(
        name="division_by_zero",
        title="Division by 0",
        operations=names("div reciprocal remainder fmod"),
        phase="forward",
        evidence=lambda clues: clues.divisor_zeros > 0,
        cause=lambda clues: (
            f"division by 0: {clues.divisor_zeros:,} divisors {_divisor(clues)} are exactly 0"
        ),
        remedy="clamp the divisor away from 0, or add an eps to it",
    ),
    Row(
        name="sqrt_at_zero",
        title="Square root at 0",
        operations=names("sqrt"),
        phase="backward",
        evidence=_zeros,
        cause=lambda clues: (
            "the derivative of sqrt at 0 is infinite: "
            + share(clues.seen.input(0).zeros, clues.seen.input(0), "exactly 0")
        ),
        remedy="sqrt(x + eps), or clamp x from below before the root",
    ),
    Row(
        name="sqrt_of_negative",
        title="Square root of a negative number",
        operations=names("sqrt rsqrt"),
        phase="forward",
        evidence=lambda clues: clues.kind == "NaN" and _negative(clues),
        cause=_outside,
        remedy="clamp the input at 0 (and keep an eps for the derivative)",
    ),
    Row(
        name="rsqrt_of_zero",
        title="Reciprocal square root of 0",
        operations=names("rsqrt"),
        evidence=_zeros,
        cause=lambda clues: (
            "1 / sqrt(0): " + share(clues.seen.input(0).zeros, clues.seen.input(0), "exactly 0")
        ),
        remedy="rsqrt(x + eps), with an eps the type can hold",
    ),
    Row(
        name="pow_of_zero",
        title="Power of 0 with an exponent below 1",
        operations=names("pow"),
        evidence=lambda clues: _zeros(clues) and not _exponent(clues) >= 1,
        cause=_power,
        remedy="clamp the base away from 0 before the power",
    ),
    Row(
        name="pow_of_negative",
        title="Power of a negative number with a fractional exponent",
        operations=names("pow"),
        evidence=lambda clues: clues.kind == "NaN" and _negative(clues),
        cause=_outside,
        remedy="clamp the base at 0, or use x.abs().pow(e) * x.sign()",
    ),
    Row(
        name="arc_at_one",
        title="acos or asin at ±1",
        operations=ARCS,
        phase="backward",
        evidence=_at_edge,
        cause=lambda clues: (
            f"the derivative of {clues.operation} at ±1 is infinite, and an input is exactly ±1"
        ),
        remedy="clamp to ±(1 − 1e-6) before it, or use atan2",
    ),
    Row(
        name="arc_outside",
        title="acos or asin outside [−1, 1]",
        operations=ARCS,
        phase="forward",
        evidence=lambda clues: clues.seen.input(0).peak > 1,
        cause=_outside,
        remedy="clamp to ±(1 − 1e-6): rounding takes a cosine past 1",
    ),
    Row(
        name="saturated_inverse",
        title="atanh, erfinv or logit at the edge",
        operations=EDGES,
        evidence=lambda clues: _at_edge(clues) or clues.seen.input(0).low in {0.0, -1.0},
        cause=lambda clues: (
            f"{clues.operation} of a saturated value: min "
            f"{clues.seen.input(0).low:.9g}, max {clues.seen.input(0).high:.9g} lies on the edge"
        ),
        remedy="keep the value from before tanh or sigmoid, or clamp by 1e-6",
    ),
    Row(
        name="angle_near_zero",
        title="Angle of a point next to (0, 0)",
        operations=names("atan2 angle"),
        phase="backward",
        cause=lambda clues: (
            f"the derivative of {clues.operation} divides by x² + y², and the squares of inputs as "
            "small as these are lost in their type"
        ),
        remedy="move both away from 0 (add an eps where both are small), or use float32",
    ),
    Row(
        name="gamma_pole",
        title="Gamma function at 0 or a negative integer",
        operations=names("lgamma digamma polygamma mvlgamma"),
        evidence=lambda clues: clues.seen.input(0).low <= 0,
        cause=lambda clues: (
            f"{clues.operation} has a pole at 0 and the negative integers: min "
            f"{clues.seen.input(0).low:.4g}"
        ),
        remedy="keep the input positive: softplus(x) + eps",
    ),
)
