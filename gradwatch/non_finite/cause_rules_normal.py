"""Causes in means, spreads, norms and the decompositions of matrices."""

from __future__ import annotations

from gradwatch.non_finite.cause_row import Row, names, of
from gradwatch.non_finite.clues import Clues
from gradwatch.non_finite.evidence import shape_words

SPREADS = names("std var std_mean var_mean")
SUMS = names("sum mean")
COUNTS = names("sum clamp clamp_min nonzero count_nonzero")
NORMS = names("linalg_vector_norm norm")
NORMALISING = names(
    "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit "
    "batch_norm _fused_rms_norm cudnn_batch_norm miopen_batch_norm"
)


def _of_nothing(clues: Clues) -> bool:
    if clues.operation != "div":
        return clues.seen.input(0).size == 0
    both = clues.maker(0) in SUMS and clues.maker(1) in COUNTS
    return both and clues.divisor_zeros > 0 and clues.seen.input(0).zeros > 0


def _handmade_norm(clues: Clues) -> bool:
    return clues.maker(0) in SUMS and clues.seen.input(0).zeros > 0


def _spread_of_one(clues: Clues) -> str:
    kept = clues.seen.output
    return (
        f"{clues.operation} over too few values: {shape_words(clues.seen.input(0).shape)} in, "
        f"{shape_words(kept.shape)} out, and the divisor n − 1 is 0"
    )


def _is_constant_input(clues: Clues) -> bool:
    if clues.operation in SPREADS:
        return clues.seen.output.zeros > 0
    return clues.maker(1) in SPREADS and clues.divisor_zeros > 0


NORMAL: tuple[Row, ...] = (
    Row(
        name="mean_over_nothing",
        title="Mean over nothing",
        operations=names("mean nanmean div"),
        phase="forward",
        evidence=_of_nothing,
        cause=lambda clues: (
            "a mean over nothing: "
            + (
                f"the selection {of(clues.seen.input(0))} is empty"
                if clues.operation != "div"
                else "a sum of nothing is divided by a count of 0"
            )
        ),
        remedy="skip an empty selection, or divide the sum by max(count, 1)",
    ),
    Row(
        name="spread_of_one",
        title="Standard deviation or variance of one value",
        operations=SPREADS,
        phase="forward",
        evidence=lambda clues: not clues.seen.input(0).bad,
        cause=_spread_of_one,
        remedy="correction=0 (the biased estimate), or drop_last=True where the last batch has one "
        "sample",
    ),
    Row(
        name="spread_of_constant",
        title="Standard deviation of values that are all equal",
        operations=names("std std_mean div"),
        evidence=_is_constant_input,
        cause=lambda clues: (
            "the standard deviation of values that are all equal is 0: "
            + (
                "its derivative divides by it"
                if clues.phase == "backward"
                else f"{clues.divisor_zeros:,} divisors {of(clues.seen.input(1))} are 0"
            )
        ),
        remedy="take the root of (variance + eps), or drop constant features",
    ),
    Row(
        name="normalising_constant",
        title="Normalisation of a constant without an epsilon",
        operations=NORMALISING,
        evidence=lambda clues: not any(each.bad for each in clues.seen.inputs),
        cause=lambda clues: (
            f"{clues.operation} of values that are all equal: the variance is 0 and "
            "no epsilon is left in the root"
        ),
        remedy="give the normalisation an eps its type can hold (1e-5)",
    ),
    Row(
        name="zero_vector_norm",
        title="Norm of a zero vector",
        operations=names("sqrt"),
        phase="backward",
        evidence=_handmade_norm,
        cause=lambda clues: (
            "the norm of a zero vector has no derivative: "
            f"{clues.seen.input(0).zeros:,} of the norms {of(clues.seen.input(0))} are exactly 0"
        ),
        remedy="add eps inside the root: (x.pow(2).sum(-1) + eps).sqrt(), or clamp the sum",
    ),
    Row(
        name="normalising_zero_vector",
        title="A zero vector divided by its norm",
        operations=names("div"),
        phase="forward",
        evidence=lambda clues: clues.maker(1) in NORMS and clues.divisor_zeros > 0,
        cause=lambda clues: (
            f"a vector is divided by its norm: {clues.divisor_zeros:,} norms "
            f"{of(clues.seen.input(1))} are exactly 0"
        ),
        remedy="torch.nn.functional.normalize(x, eps=1e-6), or clamp the norm from below",
    ),
    Row(
        name="weight_norm_zero_row",
        title="Weight normalisation of a row of zeros",
        operations=names("_weight_norm_interface _weight_norm"),
        evidence=lambda clues: not any(each.bad for each in clues.seen.inputs),
        cause=lambda clues: (
            f"weight norm divides a row {of(clues.seen.input(0))} of zeros by its norm"
        ),
        remedy="start the direction (original1, weight_v) away from 0: initialise before "
        "weight_norm, and only the magnitude with zeros",
    ),
    Row(
        name="degenerate_decomposition",
        title="Derivative of an SVD or eigendecomposition with equal values",
        operations=names("_linalg_svd _linalg_eigh linalg_eig linalg_eigh"),
        phase="backward",
        cause=lambda clues: (
            f"the derivative of {clues.operation.strip('_')} divides by the "
            "differences of singular or eigenvalues, and some are equal"
        ),
        remedy="use the values only (svdvals, eigvalsh), or break the tie with a small random "
        "perturbation",
    ),
    Row(
        name="rank_deficient_qr",
        title="Derivative of a QR decomposition of a matrix without full rank",
        operations=names("linalg_qr geqrf"),
        phase="backward",
        cause=lambda clues: (
            f"the derivative of QR solves with R, and R of the matrix "
            f"{of(clues.seen.input(0))} has a 0 on its diagonal"
        ),
        remedy="keep the columns independent (add a small multiple of the identity)",
    ),
    Row(
        name="singular_matrix",
        title="Logarithm of the determinant, or inverse, of a singular matrix",
        operations=names(
            "_linalg_slogdet _linalg_det linalg_inv_ex _linalg_solve_ex "
            "linalg_solve_triangular linalg_cholesky_ex"
        ),
        evidence=lambda clues: not clues.seen.input(0).bad,
        cause=lambda clues: (
            f"{clues.operation.strip('_')} of a singular matrix {of(clues.seen.input(0))}"
        ),
        remedy="add a small multiple of the identity before it",
    ),
)
