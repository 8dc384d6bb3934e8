"""Turn a blame into the finding every sink shows."""

from __future__ import annotations

from math import isfinite

from gradwatch.findings import INPUT, LOSS, OPTIMIZER, Evidence, Finding
from gradwatch.non_finite.blame import (
    NO_REPLAY,
    NOT_REPRODUCIBLE,
    NOT_RESTORABLE,
    ONLY_COMPILED,
    REPRODUCIBLE,
    Blame,
)
from gradwatch.non_finite.verdicts import meaning_of

RULE = "non_finite"
# The loss of a plain loop is not run again: what is seen first is the model's own operation.
FROM_THE_LOSS = "bad_loss_gradient"
MOST_SAMPLES = 8

REMEDIES = {
    INPUT: "drop or repair the bad samples, or check the data with torch.isfinite in the loader",
    LOSS: "guard the loss: an empty mean, log or division of zero, or every label ignored",
    OPTIMIZER: "the weights were bad before this step: lower the learning rate or clip gradients",
}
BY_KIND = {
    "NaN": "keep the operation's input inside its domain (eps, clamp, where() before it)",
    "Inf": "keep the operation's input away from where it overflows (eps, clamp, a wider dtype)",
}
VERDICTS = {
    NOT_RESTORABLE: "the replay does not start where the step did: state not restorable",
    NOT_REPRODUCIBLE: "the same loss, but the fault does not come back: not reproducible "
    "(nondeterminism or hardware)",
    ONLY_COMPILED: "the same step is finite without compilation: only compiled code fails",
}


def finding_of(
    blame: Blame, step: int, *, micro_batches: int = 1, cause: str = "", rank: int = 0
) -> Finding:
    """Say what a blame means to a person.

    Args:
        blame: Where the bad value was born.
        step: Optimizer step.
        micro_batches: Micro-batches the step consists of.
        cause: What brought it about, where more is known than the blame says.
        rank: Rank whose data showed it.

    Returns:
        A finding of severity ``"error"``.
    """
    return Finding(
        rule=RULE,
        layer=blame.place,
        severity="error",
        step=step,
        summary=summary_of(blame),
        evidence=_evidence(blame, micro_batches),
        cause=cause or _cause(blame),
        remedy=_remedy(blame),
        rank=rank,
    )


def summary_of(blame: Blame) -> str:
    """Give the one line a person reads first.

    Examples:
        >>> summary_of(
        ...     Blame(
        ...         place="block",
        ...         verdict="reproducible",
        ...         kind="NaN",
        ...         operation="backward of aten::sqrt",
        ...         call=3,
        ...         calls=6,
        ...         after="block.a",
        ...     )
        ... )
        'NaN born in block, backward of aten::sqrt (call index 3 of 6; after block.a)'
    """
    if not blame.kind:
        return _without_birth(blame)
    if blame.place == INPUT:
        return f"{blame.kind} came in with {blame.batch_path}" + _bracket([_named_samples(blame)])
    if blame.place == OPTIMIZER:
        return f"{blame.kind} was in {blame.evidence['parameter']} before the step began"
    if blame.cause_name == FROM_THE_LOSS:
        return f"{blame.kind} came with the gradient of the loss" + _bracket(
            [_named_samples(blame)]
        )
    if "buffer" in blame.evidence:
        return f"{blame.kind} was in buffer {blame.evidence['buffer']} before the step began"
    return f"{blame.kind} born in {blame.place}, {blame.operation}" + _bracket(_where(blame))


def _without_birth(blame: Blame) -> str:
    if blame.verdict.startswith(NO_REPLAY):
        return f"bad gradients up to {blame.place}, by parameter gradients alone"
    return f"non-finite values near {blame.place}, {blame.verdict}"


def _where(blame: Blame) -> list[str]:
    call = f"call index {blame.call} of {blame.calls}" if blame.calls > 1 else ""
    between = [
        f"{word} {name}"
        for word, name in (("after", blame.after), ("before", blame.before))
        if name
    ]
    return [call, ", ".join(between)]


def _bracket(parts: list[str]) -> str:
    told = [part for part in parts if part]
    return f" ({'; '.join(told)})" if told else ""


def _samples(blame: Blame) -> str:
    count = len(blame.samples)
    if count > 1 and count == blame.batch_size:
        return f"all {count}"
    shown = ", ".join(map(str, blame.samples[:MOST_SAMPLES]))
    return shown + (f" and {count - MOST_SAMPLES} more" if count > MOST_SAMPLES else "")


def _named_samples(blame: Blame) -> str:
    word = "sample" if len(blame.samples) == 1 else "samples"
    return f"{word} {_samples(blame)}" if blame.samples else ""


def _evidence(blame: Blame, micro_batches: int) -> dict[str, Evidence]:
    told: dict[str, Evidence] = {"batch": blame.batch_index}
    if micro_batches > 1:
        told["micro-batch"] = f"{blame.micro_batch + 1} of {micro_batches}"
    words = {
        "batch size": blame.batch_size,
        "samples": _samples(blame),
        "call index": f"{blame.call} of {blame.calls}" if blame.calls > 1 else "",
        "phase": blame.phase,
        "dtype": blame.dtype,
        "max|input|": blame.max_input if isfinite(blame.max_input) else None,
        "line": blame.source,
        "known as": blame.cause_name,
    }
    told |= {name: value for name, value in words.items() if value not in {None, ""}}
    known = {name: value for name, value in blame.evidence.items() if value != ""}
    return {**told, **known, "replay": blame.verdict}


def _remedy(blame: Blame) -> str:
    # That the result was masked and its input not is the more special advice.
    advice = blame.hint if blame.hint and blame.batch_path else blame.remedy or blame.hint
    known = advice or REMEDIES.get(blame.place) or BY_KIND.get(blame.kind, "")
    doubtful = "" if blame.verdict == REPRODUCIBLE else meaning_of(blame.verdict).next_step
    return "; ".join(part for part in (known if blame.kind else "", doubtful) if part)


def _cause(blame: Blame) -> str:
    doubt = VERDICTS.get(blame.verdict, "" if blame.verdict == REPRODUCIBLE else blame.verdict)
    return "; ".join(part for part in (blame.cause, doubt) if part)
