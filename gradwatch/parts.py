"""The protocol of a part: one thing that is watched, judged and perhaps acted on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from gradwatch.findings import Finding
    from gradwatch.non_finite.blame import Blame
    from gradwatch.non_finite.bundle import Kept
    from gradwatch.non_finite.capture import Held
    from gradwatch.non_finite.program import Program
    from gradwatch.readings import StepReading, StepRecord
    from gradwatch.reasons import Reasons
    from gradwatch.tables import Table

Action = Literal["proceed", "skip", "raise"]
Border = Literal[
    "before_transfer",
    "after_transfer",
    "before_forward",
    "after_forward",
    "before_backward",
    "after_backward",
    "after_step",
]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a part wants measured; the one measurement takes the union of all parts.

    Attributes:
        norms: Gradient norms on each optimizer step, weight norms on recorded ones.
        weights: Weight norms on each optimizer step.
        flow: The per-layer profile in the records, with the true update size ‖θ′−θ‖ and
            the share of zeros on logging steps.
        activations: Activation-gradient norms through the taps, on sampled steps.
        cuts: Where the graph is cut, in the first step.
        replay: Micro-batches held so that a failing one can be run again.
    """

    norms: bool = True
    weights: bool = False
    flow: bool = False
    activations: bool = False
    cuts: bool = False
    replay: bool = False

    def __or__(self, other: Needs) -> Needs:
        """Unite what two parts need."""
        return Needs(
            norms=self.norms or other.norms,
            weights=self.weights or other.weights,
            flow=self.flow or other.flow,
            activations=self.activations or other.activations,
            cuts=self.cuts or other.cuts,
            replay=self.replay or other.replay,
        )


def unheard(_text: str) -> None:
    """Say it to nobody."""


class Stage(NamedTuple):
    """Where a part plays: for those that look at the model itself or tell between two steps.

    Attributes:
        model: The model, wrappers looked through.
        tell: Tells a finding.
        show: Shows a table.
        given: The model as it was handed over, wrappers and all; None where nobody wraps.
        reasons: What the parts know for one another; None where a part plays alone.
        say: Says how far something has come that training waits for.
    """

    model: nn.Module
    tell: Callable[[Finding], None]
    show: Callable[[Table], None]
    given: nn.Module | None = None
    reasons: Reasons | None = None
    say: Callable[[str], object] = unheard


class Answer(NamedTuple):
    """What an investigation came to, alike on all ranks.

    Attributes:
        blame: Where the fault was born; its ``kind`` is empty where none was found.
        rank: Rank whose micro-batch showed it.
        micro_batches: Micro-batches the step consists of.
    """

    blame: Blame
    rank: int
    micro_batches: int


class Scene(Protocol):
    """What a part may ask about a step that looks wrong, before the weights take it in."""

    @property
    def rank_count(self) -> int:
        """Number of processes that train together."""

    @property
    def trouble(self) -> bool:
        """Whether any rank saw a non-finite loss, gradient or weight; alike on all ranks."""

    @property
    def bad_loss(self) -> bool:
        """Whether any rank saw a non-finite loss; alike on all ranks."""

    def investigate(self, *, unscaled: bool = False) -> Answer:
        """Run the failing micro-batch again and say where the fault was born.

        Entered by all ranks or by none.

        Args:
            unscaled: Leave the gradient scaler's factor out.
        """

    def rerun(self) -> tuple[Held, Program] | str:
        """Give a micro-batch of the step and the way to run it again, or why there is none."""

    def keep(self, finding: Finding, *, max_bytes: int) -> Kept:
        """Write what the last investigation was made of, on the rank that showed the fault.

        Entered by all ranks or by none.

        Args:
            finding: What will be told.
            max_bytes: Most bytes of tensors to write.
        """


class Verdict(NamedTuple):
    """What is to become of a step.

    Attributes:
        action: ``"proceed"``, ``"skip"`` (gradients dropped) or ``"raise"``.
        findings: What to tell.
    """

    action: Action = "proceed"
    findings: tuple[Finding, ...] = ()


class Part(ABC):
    """One watched aspect; host numbers in, findings and scalars out.

    A part never touches the device's queue: it is handed a `StepReading` after the
    one transfer. An exception inside a part switches that part off, never the run.

    Attributes:
        name: Unique name, also the key of its state in a checkpoint.
        needs: What it wants measured.
    """

    name: ClassVar[str]
    needs: Needs = Needs()

    def open(self, stage: Stage) -> None:  # noqa: B027 - optional
        """Learn where it plays at the start of a fit; called before `start`."""

    def start(self, layers: Sequence[str]) -> None:  # noqa: B027 - optional
        """Learn the layer names at the start of a fit; called before the first step."""

    def refuse(self, optimizer: Optimizer) -> str | None:  # noqa: ARG002 - optional
        """Say why the part cannot work with an optimizer, and the way out; None if it can."""
        return None

    def border(self, border: Border, *, logged: bool = True) -> None:  # noqa: B027 - optional
        """Notice that a phase of a micro-batch begins or ends.

        A plain loop brings its batches to the device out of sight: no ``"…_transfer"`` there.

        Args:
            border: Which phase.
            logged: Whether the step is one that sinks record.
        """

    def before_backward(self, roots: Sequence[Tensor]) -> None:  # noqa: B027 - optional
        """Notice what a backward is about to begin from.

        The graph behind a root must not be held: it lives as long as one of its nodes does.

        Args:
            roots: The loss; in a plain loop the model's outputs, as its forward ends.
        """

    def guard(self, reading: StepReading, scene: Scene) -> Verdict:  # noqa: ARG002 - optional
        """Decide whether the update may happen; called before `judge`."""
        return Verdict()

    @abstractmethod
    def judge(self, reading: StepReading) -> Sequence[Finding]:
        """Say what a step's numbers mean; called once per optimizer step, before the update."""

    def before_update(self, optimizer: Optimizer, reading: StepReading) -> None:  # noqa: B027
        """Act on the optimizer just before a finite, unskipped update."""

    def after_batch(self) -> None:  # noqa: B027 - optional
        """Take back what must not outlive the batch; called after each batch and at the end."""

    def close(self) -> None:  # noqa: B027 - optional
        """Take everything off: the fit is over, or the session failed; may be called twice."""

    def recorded(self, record: StepRecord) -> None:  # noqa: B027 - optional
        """Take a recorded step, complete with what its update did, as the sinks do.

        Args:
            record: The record; it belongs to a step before the one at hand.
        """

    def scalars(self) -> Mapping[str, float]:
        """Give the metrics of the step judged last, keyed as they are logged.

        Asked for when the record of that step is complete, so after its update.
        """
        return {}

    def config(self) -> Mapping[str, Any]:
        """Give the options, for the header of the run record."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Give what a resumed run needs; tensors and primitives only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - optional
        """Go on from a saved state."""
