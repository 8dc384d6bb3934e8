"""The port between a session and the loop around it: what the loop knows and can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from torch.optim import Optimizer

    from gradwatch.findings import Finding
    from gradwatch.non_finite.capture import Held
    from gradwatch.non_finite.program import Program


# A folder named like the package would shadow it for scripts that run beside the folder.
RUNS = "gradwatch_runs"
WEIGHTS_ARE_BAD = "  intact    no: the weights were bad before; go back to an earlier checkpoint"


class Clock(NamedTuple):
    """Where the loop stands.

    Attributes:
        step: Optimizer steps done (``trainer.global_step``).
        log_step: The x axis of the logger.
        batch: Index of the batch in its epoch.
    """

    step: int
    log_step: int
    batch: int


class Scale(NamedTuple):
    """The gradient scaler's part in a step.

    Attributes:
        value: 0-d device tensor, the loss scale.
        in_gradients: True where the optimizer's gradients still carry it.
    """

    value: Tensor
    in_gradients: bool


class Host(Protocol):
    """What a session asks of the loop it stands in."""

    def clock(self) -> Clock:
        """Tell where the loop stands."""

    def is_logged(self, log_step: int) -> bool:
        """Tell whether loggers record this step."""

    def optimizer_name(self, optimizer: Optimizer) -> str:
        """Give ``""`` with one optimizer, else ``"opt0"``, ``"opt1"``, ..."""

    def scale(self, optimizer: Optimizer) -> Scale | None:
        """Give the loss scale of a step; None without a gradient scaler."""

    def clipped_norm(self, norm: float) -> float | None:
        """Derive the total norm after clipping; None where nothing clips or it is unknown."""

    def measures_clipped(self) -> bool:
        """Tell whether something clips in a way that can only be seen after the update."""

    def program(self, held: Held, *, unscaled: bool) -> Program | str:
        """Give the way to run a micro-batch again, or the reason why there is none."""

    def bundle_folder(self) -> Path | None:
        """Give the folder for what a replay elsewhere needs; None where nothing is written.

        Entered by all ranks or by none.
        """

    def announce_checkpoint(self, finding: Finding) -> str:
        """Say where the intact weights will be kept when a finding stops training; may be empty."""
