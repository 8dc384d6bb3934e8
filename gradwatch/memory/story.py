"""What one step's memory means, phase by phase: pure functions, one rule each.

They judge an accelerator's books, and say nothing of a step whose borders were not all seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gradwatch.findings import ROOT, Evidence, Finding
from gradwatch.memory.checkpoints import heaviest, in_words, propose
from gradwatch.memory.live import Held
from gradwatch.memory.options import MemoryOptions
from gradwatch.memory.phases import BORDERS, MIB, StepMemory, latest, phase_deltas
from gradwatch.memory.saved import SavedMemory
from gradwatch.memory.snapshot import MemorySnapshot

CLEARED_LATE = "late"
NEVER_NONE = "kept"


class Story(NamedTuple):
    """What is known of a step that is done.

    Attributes:
        memory: Its snapshots.
        saved: What its forward kept for the backward, looked at once in a run.
        held_bytes: Gradients of the step before that were there when its forward began.
        cleared: What became of them: ``"late"`` where they were gone as the backward began,
            ``"kept"`` where they were not; empty where there were none.
    """

    memory: StepMemory
    saved: SavedMemory = SavedMemory()
    held_bytes: int = 0
    cleared: str = ""

    @property
    def last(self) -> MemorySnapshot:
        """The snapshot taken last."""
        return latest(self.memory)

    def room(self, options: MemoryOptions) -> bool:
        """Tell whether there is plenty of room, or nothing known of it."""
        peak, total = self.last.peak_bytes, self.last.total_bytes
        return not peak or not total or peak < options.full * total


def judge_activations(story: Story, step: int, options: MemoryOptions) -> Finding | None:
    """Tell that what the forward keeps for the backward fills the device, and what to checkpoint.

    Allocated rises with the forward and falls with the backward; reserved stays where the first
    steps took it.
    """
    forward = phase_deltas(story.memory, "allocated_bytes").get("forward", 0)
    peak = story.last.peak_bytes or 0
    if not story.saved.total_bytes or forward < options.activations * peak or story.room(options):
        return None
    top, chosen = heaviest(story.saved), propose(story.saved)
    freed = sum(layer.freed_bytes for layer in chosen)
    return Finding(
        rule="memory_activations",
        layer=top[0].name,
        severity="info",
        step=step,
        summary=f"the forward keeps {forward / MIB:,.0f} MiB for the backward, of a peak of "
        f"{peak / MIB:,.0f}",
        evidence={
            "forward_MiB": forward / MIB,
            "reserved_forward_MiB": phase_deltas(story.memory, "reserved_bytes").get("forward", 0)
            / MIB,
            "peak_MiB": peak / MIB,
            "device_MiB": (story.last.total_bytes or 0) / MIB,
            "saved_most_MiB": in_words(top, "saved_bytes"),
            "checkpoint_first_MiB": in_words(chosen, "freed_bytes"),
            "recompute_GFLOP": sum(layer.flops for layer in chosen) / 1e9,
        },
        cause="activations saved for the backward take most of the device's memory",
        remedy=f"checkpoint the modules named under checkpoint_first (most bytes freed for each "
        f"operation done again): {freed / MIB:,.0f} MiB less until their backward; or a smaller "
        "batch with accumulation",
    )


def judge_temporaries(story: Story, step: int, options: MemoryOptions) -> Finding | None:
    """Tell that within a phase far more was alive for a moment than at either end of it."""
    spike, phase = max(((_spike(story, phase), phase) for phase in BORDERS), default=(0, ""))
    peak = story.last.peak_bytes or 0
    if spike < max(options.temporaries * peak, options.temporaries_MiB * MIB):
        return None
    return Finding(
        rule="memory_temporaries",
        layer=ROOT,
        severity="info",
        step=step,
        summary=f"in the {phase} {spike / MIB:,.0f} MiB were alive for a moment only",
        evidence={
            "phase": phase,
            "peak_MiB": peak / MIB,
            "live_MiB": (peak - spike) / MIB,
            "short_lived_MiB": spike / MIB,
        },
        cause="short-lived temporaries: gradients of large activations, workspaces (in the first "
        "steps those that are tried out), copies into another type or layout",
        remedy="fuse or checkpoint the layers that make them, free them early (del), compute the "
        "loss in pieces, or torch.compile the part",
    )


def _spike(story: Story, phase: str) -> int:
    """Give what was alive above both ends of a phase, if the run's peak rose in it."""
    start, end = (story.memory.borders.get(border) for border in BORDERS[phase])
    if start is None or end is None or end.peak_bytes is None:
        return 0
    # Where the peak did not rise it belongs to another phase or an earlier step.
    if start.peak_bytes is None or end.peak_bytes <= start.peak_bytes:
        return 0
    return end.peak_bytes - max(start.allocated_bytes or 0, end.allocated_bytes or 0)


def judge_held_gradients(story: Story, step: int, options: MemoryOptions) -> Finding | None:
    """Tell that the last step's gradients lie in memory while the next forward runs."""
    peak = story.last.peak_bytes or 0
    if not story.cleared or story.held_bytes < options.held * peak or story.room(options):
        return None
    why = _HELD[story.cleared]
    evidence: dict[str, Evidence] = {
        "gradients_MiB": story.held_bytes / MIB,
        "peak_MiB": peak / MIB,
        "device_MiB": (story.last.total_bytes or 0) / MIB,
    }
    return Finding(
        rule="memory_gradients_held",
        layer=ROOT,
        severity="info",
        step=step,
        summary="gradients of the step before are still there while the next forward runs",
        evidence=evidence,
        cause=why.cause,
        remedy=why.remedy,
    )


class _Why(NamedTuple):
    cause: str
    remedy: str


_HELD = {
    CLEARED_LATE: _Why(
        "zero_grad() runs between forward and backward (the Trainer's own order), so that "
        "activations and old gradients are alive together",
        "call optimizer.zero_grad() right after the update: in on_train_batch_end, or at the end "
        "of the loop",
    ),
    NEVER_NONE: _Why(
        "gradients are set to zero and not let go: zero_grad(set_to_none=False), or never cleared",
        "zero_grad(set_to_none=True), right after the update",
    ),
}


def judge_kept_graphs(held: Sequence[Held], steps: int, step: int) -> Finding | None:
    """Tell tensors with a graph behind them, of which there are more with each step.

    Args:
        held: The kinds that grow, fastest first, as they are now.
        steps: Optimizer steps over which they grew.
        step: Optimizer step.
    """
    if not held:
        return None
    most = held[0]
    retained = sum(each.retained for each in held)
    evidence: dict[str, Evidence] = {
        "tensors": sum(each.number for each in held),
        "over_steps": steps,
        "made_by": most.operation,
        "shape": str(most.shape),
        "MiB": sum(each.nbytes for each in held) / MIB,
    }
    evidence |= {"held_in": most.holder} if most.holder else {}
    evidence |= {"with_retain_grad": retained} if retained else {}
    kept = f"in {most.holder}" if most.holder else "somewhere in Python"
    return Finding(
        rule="graph_kept",
        layer=ROOT,
        severity="warning",
        step=step,
        summary=f"tensors with their graph are kept {kept}, more with each step",
        evidence=evidence,
        cause="each keeps the graph of its step alive: a loss or an output that is collected "
        "without detach()" + (", and gradients kept by retain_grad()" if retained else ""),
        remedy="store .detach() or .item() (at the end of an epoch, not each step)"
        + ("; take retain_grad() out" if retained else ""),
    )


PhaseRule = Callable[[Story, int, MemoryOptions], Finding | None]
PHASE_RULES: tuple[PhaseRule, ...] = (
    judge_activations,
    judge_temporaries,
    judge_held_gradients,
)
