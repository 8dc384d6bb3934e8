"""Causes outside the operation: what came in bad, what was masked too late, lost digits."""

from __future__ import annotations

from math import isnan

from gradwatch.non_finite.cause_row import Row, in_samples, names
from gradwatch.non_finite.clues import Clues
from gradwatch.non_finite.evidence import bare

CONFINED = names(
    "log log2 log10 log1p sqrt rsqrt pow reciprocal acos asin acosh atanh erfinv logit lgamma "
    "digamma xlogy"
)
DIVIDING = names("div reciprocal log log2 log10 sqrt rsqrt pow acos asin atanh erfinv logit")
GUARDS = names("add sub rsub clamp clamp_min clamp_max")


def _bad_input(clues: Clues) -> str:
    held = clues.seen.inputs + clues.fault.inputs
    bad = next((each for each in held if each.first_bad), None)
    feature = bad.first_bad[1:] if bad and bad.first_bad else ()
    where = f", first at feature {', '.join(map(str, feature))}" if feature else ""
    word = clues.kind or "NaN"
    return f"{clues.path} holds {word}{in_samples(clues)}{where}"


def _is_masked(clues: Clues) -> bool:
    if clues.leaf:
        return False
    # A gradient of 0 where nothing was selected, times an infinite derivative.
    times_zero = clues.kind == "NaN" and any(each.zeros for each in clues.fault.inputs)
    return bool(clues.made_by) or (clues.is_selected and times_zero and clues.phase == "backward")


def _masked(clues: Clues) -> str:
    operation = clues.operation or "an operation"
    return (
        f"the branch of a where() or mask that is not selected runs {operation} "
        "outside its domain: its gradient is 0 × inf = NaN, though the result is left out"
    )


def _lost(clues: Clues) -> tuple[float, str] | None:
    """Find a small constant that the type could not hold, in what made the input."""
    guards = (maker for maker in clues.makers if bare(maker.name) in GUARDS)
    lost = ((maker.lost_number(), maker.output.dtype) for maker in guards)
    return next(((number, dtype) for number, dtype in lost if number is not None), None)


def _epsilon(clues: Clues) -> str:
    number, dtype = _lost(clues) or (0.0, "")
    edge = "0" if abs(number) < 0.5 else "1"  # noqa: PLR2004 - half-way between the two edges
    return f"the constant {number:g} that guards {clues.operation} is rounded to {edge} in {dtype}"


def _confined(clues: Clues) -> int:
    """Place of the input that must keep to a range."""
    return 1 if clues.operation == "xlogy" else 0


def _out_of_domain(clues: Clues) -> str:
    read = clues.seen.input(_confined(clues))
    low = "" if isnan(read.low) else f" (min {read.low:.4g}, max {read.high:.4g})"
    path = clues.path_of(_confined(clues))
    return f"{path} holds values that {clues.operation} is not defined for{low}{in_samples(clues)}"


ORIGIN: tuple[Row, ...] = (
    Row(
        name="bad_input",
        title="The batch holds NaN or Inf",
        evidence=lambda clues: clues.leaf == "batch",
        cause=_bad_input,
        remedy="drop or repair such samples, or check the data with torch.isfinite in the loader",
    ),
    Row(
        name="bad_parameter",
        title="A weight was bad before the step began",
        evidence=lambda clues: clues.leaf == "parameter",
        cause=lambda clues: (
            f"{clues.path} held {clues.kind} before this step began: an earlier "
            "update, a checkpoint or its initialisation put it there"
        ),
        remedy="start from weights that are finite; lower the rate, raise the optimizer's eps or "
        "clip if an update made them",
    ),
    Row(
        name="bad_buffer",
        title="A buffer (running statistics) was bad before the step began",
        evidence=lambda clues: clues.leaf == "buffer",
        cause=lambda clues: (
            f"buffer {clues.path} held {clues.kind} before this step began: a bad "
            "batch, or one value a channel, went into it earlier"
        ),
        remedy="reset the buffer; keep bad batches out, and batches of one out of batch norm",
    ),
    Row(
        name="bad_loss_gradient",
        title="The gradient of the loss was bad before it reached the model",
        evidence=lambda clues: clues.leaf == "gradient",
        cause=lambda clues: f"the gradient the loss handed to the model already held {clues.kind}",
        remedy="guard the loss: it stands outside the model, its operations are not recorded",
    ),
    Row(
        name="epsilon_lost",
        title="An epsilon is too small for half precision",
        operations=DIVIDING,
        evidence=lambda clues: _lost(clues) is not None,
        cause=_epsilon,
        remedy="use an epsilon the type can hold (float16: 1e-4 beside 0, 1e-3 beside 1; bfloat16 "
        "beside 1: 1e-2), or run this operation in float32",
    ),
    Row(
        name="masked_too_late",
        title="A where() or mask guards the result and not the input",
        phase="backward",
        evidence=_is_masked,
        cause=_masked,
        remedy="mask the INPUT of {operation}, not its output: "
        "torch.where(ok, f(torch.where(ok, x, 1)), 0)",
    ),
    Row(
        name="out_of_domain",
        title="A target or input is outside what the operation is defined for",
        operations=CONFINED,
        evidence=lambda clues: bool(clues.path_of(_confined(clues))),
        cause=_out_of_domain,
        remedy="check the labels or inputs where they are loaded; clamp or shift them before "
        "{operation}",
    ),
)
