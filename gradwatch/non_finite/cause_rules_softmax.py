"""Causes in softmax and in the losses of classification."""

from __future__ import annotations

from gradwatch.non_finite.cause_row import Row, in_samples, names, of
from gradwatch.non_finite.clues import Clues

SOFTMAXES = names("_softmax _log_softmax _safe_softmax")
LIKELIHOOD = names("nll_loss_forward nll_loss2d_forward nll_loss_nd")
WEIGHT = 1


def _rows(clues: Clues) -> str:
    count, scores = clues.seen.empty_rows, clues.seen.input(0)
    row = "row" if count == 1 else "rows"
    holds = "holds" if count == 1 else "hold"
    return f"{count:,} {row} {of(scores)} {holds} only -inf{in_samples(clues)}"


def _all_ignored(clues: Clues) -> bool:
    total = clues.seen.outputs[WEIGHT] if len(clues.seen.outputs) > WEIGHT else None
    return total is not None and total.size == total.zeros and not clues.seen.input(0).bad


def _is_divergence(clues: Clues) -> bool:
    logs = {"aten::log", "aten::_log_softmax"}
    return any(
        each.weighed or (each.name == "aten::sub" and logs & set(each.partners))
        for each in clues.consumers
    )


SOFTMAX: tuple[Row, ...] = (
    Row(
        name="softmax_all_masked",
        title="Softmax over a row that is masked entirely",
        operations=SOFTMAXES,
        evidence=lambda clues: clues.seen.empty_rows > 0,
        cause=lambda clues: f"softmax over a fully masked row: {_rows(clues)}",
        remedy="mask with a large finite value, give every row one allowed key, or drop such "
        "samples",
    ),
    Row(
        name="logsumexp_all_masked",
        title="logsumexp over a row that is masked entirely",
        operations=names("logsumexp"),
        evidence=lambda clues: clues.seen.empty_rows > 0,
        cause=lambda clues: (
            f"logsumexp over a fully masked row: {_rows(clues)}; the log of nothing is -inf"
        ),
        remedy="mask with a large finite value, or leave such rows out before logsumexp",
    ),
    Row(
        name="softmax_of_inf",
        title="Softmax of scores that hold +inf",
        operations=SOFTMAXES,
        evidence=lambda clues: clues.seen.input(0).plus_inf > 0,
        cause=lambda clues: (
            f"softmax of +inf: {clues.seen.input(0).plus_inf:,} scores "
            f"{of(clues.seen.input(0))} are +inf, and inf − inf is NaN"
        ),
        remedy="mask with −inf or a large negative value, never with +inf",
    ),
    Row(
        name="all_labels_ignored",
        title="Cross-entropy of labels that are all ignored",
        operations=LIKELIHOOD,
        evidence=_all_ignored,
        cause=lambda clues: (
            "every label of the batch is ignored or weighs 0: the mean is taken "
            f"over none of the {clues.seen.input(0).shape[0] if clues.seen.input(0).shape else 0} "
            "labels"
        ),
        remedy="skip batches without a label, or use reduction='sum' and divide by max(count, 1)",
    ),
    Row(
        name="label_behind_mask",
        title="The right class is masked with −inf",
        operations=LIKELIHOOD,
        evidence=lambda clues: clues.seen.input(0).minus_inf > 0,
        cause=lambda clues: (
            "a label points at a class whose score is -inf: its probability is 0 "
            f"and its loss infinite{in_samples(clues)}"
        ),
        remedy="never mask the class that is the label; mask with a large finite value",
    ),
    Row(
        name="ctc_too_short",
        title="CTC: the input is shorter than its target",
        operations=names("_ctc_loss"),
        evidence=lambda clues: clues.kind == "Inf" and not clues.seen.input(0).bad,
        cause=lambda clues: (
            "CTC has no alignment: an input is shorter than its target (repeated "
            f"labels need a blank between them){in_samples(clues)}"
        ),
        remedy="zero_infinity=True, or drop samples whose input is shorter than the target",
    ),
    Row(
        name="kl_with_zeros",
        title="Kullback-Leibler divergence from a distribution with zeros",
        operations=names("log"),
        phase="forward",
        evidence=lambda clues: clues.seen.input(0).zeros > 0 and _is_divergence(clues),
        cause=lambda clues: (
            f"KL divergence: {clues.seen.input(0).zeros:,} probabilities "
            f"{of(clues.seen.input(0))} are exactly 0, and log 0 is -inf"
        ),
        remedy="compare log-probabilities from log_softmax, or clamp probabilities before the log",
    ),
)
