"""Put a fault, its place and the close look at it into one blame."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from gradwatch.non_finite.blame import Blame, Evidence, Fault
from gradwatch.non_finite.capture import Held
from gradwatch.non_finite.causes import cause_of
from gradwatch.non_finite.clues import clues_of
from gradwatch.non_finite.evidence import NOTHING, Seen, words_of
from gradwatch.non_finite.place import operation_of, place_of
from gradwatch.non_finite.probe import Probe, Sight, look
from gradwatch.non_finite.surroundings import Surroundings
from gradwatch.non_finite.trace import Trace

MASK_INPUT = (
    "the result of {0} is bad in the forward pass and selected away later, yet its derivative "
    "is multiplied by it: mask the INPUT of {0} (torch.where before it), not its output"
)
REPLACE_INPUT = (
    "the bad values are selected away in the forward pass, yet a derivative is multiplied by "
    "them: replace them before the first operation (torch.nan_to_num, where), not after it"
)
DERIVATIVE = (
    "the forward pass is finite, the derivative is not: if a where() or a mask guards the "
    "result, mask the INPUT of the operation, not its output"
)


def blame_of(
    fault: Fault, trace: Trace, held: Held, probe: Probe | None, around: Surroundings
) -> Blame:
    """Say everything that is known about a fault, its verdict left open.

    Args:
        fault: What is to blame.
        trace: The record it was found in.
        held: The micro-batch.
        probe: The close look; None where there was no second replay.
        around: The neighbours of the fault.

    Returns:
        The blame with an empty verdict.
    """
    place = place_of(fault, trace)
    sight, seen = (probe.sight, probe.seen) if probe else (Sight(), {})
    samples = _samples(fault, held, probe)
    known = cause_of(clues_of(fault, around, seen, samples=samples, batch_size=held.size))
    batch_path = fault.leaf.name if fault.leaf and fault.leaf.kind == "batch" else ""
    return Blame(
        place=place.name,
        verdict="",
        kind=fault.value.word,
        phase="backward" if fault.backward else "forward",
        operation=operation_of(fault),
        call=place.call,
        calls=place.calls,
        after=place.after,
        before=place.before,
        samples=samples,
        batch_path=batch_path,
        batch_index=held.batch_index,
        micro_batch=held.micro_batch,
        batch_size=held.size,
        source=probe.line if probe else "",
        dtype=sight.dtype,
        max_input=sight.max_input,
        hint=_hint(fault),
        cause_name=known.name if known else "",
        cause=known.cause if known else "",
        remedy=known.remedy if known else "",
        evidence=_evidence(fault, sight, seen) | ({"chain": around.chain} if around.chain else {}),
    )


def _hint(fault: Fault) -> str:
    if fault.made_by and fault.leaf:
        return REPLACE_INPUT
    if fault.made_by:
        return MASK_INPUT.format(fault.made_by)
    return DERIVATIVE if fault.backward and fault.leaf is None else ""


def _evidence(fault: Fault, sight: Sight, seen: Mapping[int, Seen]) -> dict[str, Evidence]:
    evidence = _numbers(seen.get(fault.operation.index, NOTHING), backward=fault.backward)
    if fault.backward and fault.source in seen:
        evidence |= {"forward inputs": words_of(seen[fault.source].inputs)}
    if sight.name:
        shape = "×".join(map(str, sight.shape)) or "scalar"
        evidence |= {"shape": shape, "nan_count": sight.nan_count, "inf_count": sight.inf_count}
    if fault.leaf:
        # "batch" is the key of the batch's index.
        kind = "tensor" if fault.leaf.kind == "batch" else fault.leaf.kind
        evidence[kind] = fault.leaf.name
    if fault.constant:
        evidence["constant_inf"] = fault.constant
    if fault.made_by:
        evidence["bad_forward_result_of"] = fault.made_by
    return evidence


def _numbers(seen: Seen, *, backward: bool) -> dict[str, Evidence]:
    words = "gradients in" if backward else "inputs"
    first = seen.output.first_bad
    told: dict[str, Evidence] = {words: words_of(seen.inputs), "outputs": words_of(seen.outputs)}
    told |= {"first bad index": str(first)} if first else {}
    return {name: value for name, value in told.items() if value}


def _samples(fault: Fault, held: Held, probe: Probe | None) -> tuple[int, ...]:
    """Tell the bad samples by the first tensor whose dimension 0 is the batch."""
    if fault.leaf is not None:
        named = dict(held.tensors()) if fault.leaf.kind == "batch" else {}
        sights = [look([named[fault.leaf.name]])] if named else []
    else:
        sights = [probe.sight, *probe.outputs] if probe else []
    weights = {tuple(each.shape) for each in _weights(fault)}
    batched = (each for each in sights if each.size == held.size and each.shape not in weights)
    return next((each.rows for each in batched if each.rows), ())


def _weights(fault: Fault) -> list[nn.Parameter]:
    module = fault.operation.call.module
    return list(module.parameters(recurse=False)) if module is not None else []
