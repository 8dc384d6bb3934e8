"""Run a failing micro-batch again under a trace, name the fault, and leave no mark."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradwatch.findings import LOSS
from gradwatch.layers import clean_name, clean_parameter_name, is_compiled
from gradwatch.non_finite.blame import (
    NO_REPLAY,
    NOT_REPRODUCIBLE,
    NOT_RESTORABLE,
    ONLY_COMPILED,
    REPRODUCIBLE,
    Blame,
    Evidence,
    Fault,
    Judge,
    Leaf,
)
from gradwatch.non_finite.capture import Held, rng_preserved
from gradwatch.non_finite.flags import Value, dense_parts, worst
from gradwatch.non_finite.memory import Use, storage_number
from gradwatch.non_finite.mode import Watch
from gradwatch.non_finite.muted import wandb_muted
from gradwatch.non_finite.probe import Probe
from gradwatch.non_finite.program import Program, Suspects, each_root
from gradwatch.non_finite.state import Snapshot, gradients_aside
from gradwatch.non_finite.surroundings import Surroundings, surroundings_of
from gradwatch.non_finite.telling import blame_of
from gradwatch.non_finite.trace import Trace
from gradwatch.non_finite.walk import Record
from gradwatch.words import one_line

# Compiled code rounds differently: its loss is compared as loosely as its type allows.
LOOSE = 1e-3
MOST_BUFFERS = 3


def investigate(
    model: nn.Module,
    held: Held,
    program: Program,
    suspects: Suspects,
    *,
    replays: int = 2,
    lockstep: bool = False,
) -> Blame:
    """Replay a micro-batch, find where the bad value was born, and restore everything.

    Args:
        model: The model, as the program calls it.
        held: The micro-batch.
        program: Runs its forward and backward pass.
        suspects: What was seen to be wrong.
        replays: 1 leaves out the second run, which looks closely and checks the first.
        lockstep: Other ranks run theirs at the same time: run as often as they do, also
            where the first run shows no fault, since the step may hold collectives.

    Returns:
        The blame; where no replay was possible, the answer from parameter gradients.
    """
    try:
        with rng_preserved(), gradients_aside(model), wandb_muted():
            return _Investigation(model, held, program, suspects).run(replays, lockstep=lockstep)
    except Exception as error:  # noqa: BLE001 - the user's code runs here: anything may come
        return fallback(suspects, one_line(error), held)


def fallback(suspects: Suspects, reason: str, held: Held | None = None) -> Blame:
    """Answer from parameter gradients alone: the bad layer nearest the loss.

    A bad gradient spreads from where it was born to everything that ran before it,
    so that of all bad layers the one that ran last is the nearest to the fault.

    Args:
        suspects: Names of the bad parameters and the order their layers ran in.
        reason: Why there is no replay.
        held: The micro-batch, where one is known.

    Returns:
        A blame that says it rests on no replay.
    """
    return replace(_nearest(suspects, held), verdict=f"{NO_REPLAY}: {reason}")


class _Investigation:
    """Two replays of one micro-batch and what they showed."""

    def __init__(self, model: nn.Module, held: Held, program: Program, suspects: Suspects) -> None:
        self._model, self._held, self._program = model, held, program
        self._suspects = suspects
        self._edited = held.edited()
        self._trains = [(each, each.requires_grad) for each in model.parameters()]
        self._snapshot = Snapshot(model, (tensor for _, tensor in held.tensors()))

    def run(self, replays: int, *, lockstep: bool) -> Blame:
        trace, probe = Trace(self._model), None
        try:
            roots = self._replay(trace)
            record, gradients = Record(trace, trace.flags.read()), self._gradients(trace)
            named = {use.storage: name for use, name in gradients.items()}
            leaves = dict(_leaves(self._model, self._held))
            fault = Judge(record, leaves).fault(_uses(trace, roots), list(gradients))
            around = surroundings_of(fault, record, leaves, named) if fault else Surroundings()
            if fault is not None and replays > 1:
                probe = Probe(fault, around)
                self._replay(probe)
            elif lockstep and replays > 1:
                self._replay(Trace(self._model))
        finally:
            self._snapshot.restore()
        verdict = self._verdict(fault, probe, equal=self._is_equal(roots))
        if fault is None:
            return self._without_fault(trace, verdict)
        blame = blame_of(fault, trace, self._held, probe, around)
        if blame.batch_path in self._edited:
            # What came in before the edit is lost: the value may be the step's own.
            verdict = NOT_RESTORABLE
        evidence = {**blame.evidence, **_count(self._suspects), **self._edits(verdict)}
        evidence |= _ruined(self._model) if "buffer" not in evidence else {}
        return replace(blame, verdict=verdict, evidence=evidence)

    def _replay(self, mode: Watch) -> list[Tensor]:
        """Run the program once from the exact start."""
        self._snapshot.restore()
        self._held.restore_rng()
        for parameter, trains in self._trains:
            parameter.grad = None
            # A run that stops in one optimizer's turn leaves the others' parameters toggled off.
            parameter.requires_grad_(trains)
        with torch.enable_grad(), _eagerly(), mode:
            roots = self._program.forward()
            kept = [root.detach() for root in each_root(roots)]
            self._program.backward(roots)
        return kept

    def _gradients(self, trace: Trace) -> dict[Use, str]:
        return {
            use: clean_parameter_name(name)
            for name, parameter in self._model.named_parameters()
            if parameter.grad is not None
            for use in trace.memory.reads(parameter.grad)
        }

    def _is_equal(self, roots: list[Tensor]) -> bool:
        """Compare the replayed loss with the original, where that was kept."""
        if self._suspects.loss is None:
            return True
        before = each_root(self._suspects.loss)
        loose = LOOSE if self._compiled else 0.0
        pairs = zip(before, roots, strict=False)
        return len(before) == len(roots) and all(
            torch.allclose(a.detach(), b.to(a), rtol=loose, atol=0.0, equal_nan=True)
            for a, b in pairs
        )

    @property
    def _compiled(self) -> bool:
        return self._suspects.compiled or is_compiled(self._model)

    def _verdict(self, fault: Fault | None, probe: Probe | None, *, equal: bool) -> str:
        if fault is None and self._compiled:
            return ONLY_COMPILED
        if not equal:
            return NOT_RESTORABLE
        if fault is None or (probe is not None and not probe.confirms(fault)):
            return NOT_REPRODUCIBLE
        return REPRODUCIBLE

    def _without_fault(self, trace: Trace, verdict: str) -> Blame:
        order = self._suspects.order or trace.stack.order()
        suspects = replace(self._suspects, order=order)
        evidence = {**_count(suspects), **self._edits(verdict)}
        return replace(_nearest(suspects, self._held), verdict=verdict, evidence=evidence)

    def _edits(self, verdict: str) -> dict[str, Evidence]:
        told = verdict == NOT_RESTORABLE and self._edited
        return {"edited_in_place": ", ".join(self._edited)} if told else {}


def _nearest(suspects: Suspects, held: Held | None) -> Blame:
    ranks = {name: rank for rank, name in enumerate(suspects.order)}
    names = [_owner(name, ranks) for name in suspects.parameters]
    return Blame(
        place=max(names, key=lambda name: ranks.get(name, -1), default=LOSS),
        verdict="",
        batch_index=held.batch_index if held else 0,
        micro_batch=held.micro_batch if held else 0,
        batch_size=held.size if held else None,
        evidence=_count(suspects),
    )


def _owner(parameter: str, known: Collection[str]) -> str:
    """Name the layer of a parameter; what a parametrization holds belongs to its layer."""
    name = clean_name(parameter.rpartition(".")[0])
    outwards = [name.rsplit(".", cut)[0] for cut in range(name.count(".") + 1)]
    return next((each for each in outwards if each in known), name)


def _count(suspects: Suspects) -> dict[str, Evidence]:
    return {"bad_parameters": len(suspects.parameters)}


def _ruined(model: nn.Module) -> dict[str, Evidence]:
    """Name running statistics that the failing forward pass has turned NaN.

    They stay so whatever becomes of the update, and are used when the model evaluates.
    """
    floating = ((n, each) for n, each in model.named_buffers() if each.is_floating_point())
    names = [_owned(name) for name, each in floating if worst(each) is Value.NAN]
    return {"buffers turned NaN": ", ".join(names[:MOST_BUFFERS])} if names else {}


def _leaves(model: nn.Module, held: Held) -> Iterator[tuple[int, Leaf]]:
    """Name the memory that was there before; the batch last, for it may hold a buffer's."""
    named: list[tuple[str, str, Tensor]] = [
        ("buffer", _owned(name), buffer) for name, buffer in model.named_buffers()
    ]
    named += [
        ("parameter", clean_parameter_name(name), each) for name, each in model.named_parameters()
    ]
    named += [("batch", path, tensor) for path, tensor in held.tensors()]
    for kind, name, tensor in named:
        for part in dense_parts(tensor.detach()):
            yield storage_number(part), Leaf(kind, name)


def _uses(trace: Trace, tensors: list[Tensor]) -> list[Use]:
    return [use for tensor in tensors for use in trace.memory.reads(tensor)]


def _owned(buffer: str) -> str:
    owner, _, own = buffer.rpartition(".")
    return f"{clean_name(owner)}.{own}"


def _eagerly() -> AbstractContextManager[object]:
    # Without the compiler loaded there is nothing compiled, and loading it takes seconds.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
