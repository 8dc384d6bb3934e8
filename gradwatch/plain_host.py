"""A plain loop as the loop around a session: what the hooks can see of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradwatch.errors import positive
from gradwatch.findings import OPTIMIZER
from gradwatch.hooks import Hook, tensors_in
from gradwatch.host import RUNS, WEIGHTS_ARE_BAD, Clock, Scale
from gradwatch.non_finite.program import ModelProgram
from gradwatch.non_finite.recipe import autocast_now

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.amp import GradScaler
    from torch.optim import Optimizer

    from gradwatch.findings import Finding
    from gradwatch.non_finite.capture import Held
    from gradwatch.non_finite.program import Program

SCALE_OVERFLOW = "the scaled loss itself overflowed: its gradient cannot be unscaled"
NOT_SEEN = "no gradient was seen at the model's outputs"


class PlainHost:
    """Count forwards and steps, and keep the gradients that arrive at the outputs.

    Args:
        model: The model, unwrapped.
        optimizers: Its optimizers.
        scaler: The gradient scaler, where there is one.
        log_every_n_steps: Steps between two recorded steps.

    Attributes:
        steps: Optimizer steps begun.
        forwards: Forwards of the model seen.
        scaler: The gradient scaler.
        backward_open: True between the start of a backward and the next event.
        in_scaler_step: True while the scaler runs the optimizer's step.

    Raises:
        ConfigurationError: If the interval is not positive.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scaler: GradScaler | None,
        log_every_n_steps: int,
    ) -> None:
        """Start at step 0."""
        positive("log_every_n_steps", log_every_n_steps)
        self._model, self._optimizers = model, list(optimizers)
        self._interval = log_every_n_steps
        self.forwards = 0
        self._grads: dict[int, list[Tensor | None]] = {}
        self._autocast: dict[int, str] = {}
        first = next(model.parameters(), None)
        self._device = "cpu" if first is None else first.device.type
        self.scaler = scaler
        self.steps = 0
        self.backward_open = self.in_scaler_step = False

    def hook(self, call: Callable[..., object]) -> Hook:
        """Wrap a call as a module hook that copies and pickles as nothing."""
        return Hook(call)

    def enter(self) -> int:
        """Count a forward; give its index."""
        self._autocast[self.forwards] = autocast_now(self._device)
        self.forwards += 1
        return self.forwards - 1

    def keep_only(self, forwards: Collection[int]) -> None:
        """Let go of what was kept for forwards that will not be run again.

        Args:
            forwards: Indices of those that may be.
        """
        self._grads = {index: own for index, own in self._grads.items() if index in forwards}
        self._autocast = {index: own for index, own in self._autocast.items() if index in forwards}

    def kept_bytes(self, forward: int) -> int:
        """Tell how large the gradients kept for a forward are.

        Args:
            forward: Its index.
        """
        return sum(each.nbytes for each in self._grads.get(forward, []) if each is not None)

    def leave(self, output: object, begins: Callable[[], object]) -> list[Tensor]:
        """Wait for the gradient at each tensor of the output; the first one begins a backward.

        Args:
            output: What the model returned.
            begins: Called once when the backward reaches the model.

        Returns:
            What a backward may begin from.
        """
        index = self.forwards - 1
        tensors = list(tensors_in(output))
        grads: list[Tensor | None] = [None] * len(tensors)
        self._grads[index] = grads

        def arrived(slot: int, grad: Tensor) -> None:
            if not self.backward_open:
                self.backward_open = True
                begins()
            grads[slot] = grad.detach()

        for slot, tensor in enumerate(tensors):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(functools.partial(arrived, slot))
        return [tensor for tensor in tensors if tensor.requires_grad]

    def clock(self) -> Clock:
        """Tell steps begun and forwards seen."""
        return Clock(self.steps, self.steps, self.forwards - 1)

    def is_logged(self, log_step: int) -> bool:
        """Record each n-th step."""
        return (log_step + 1) % self._interval == 0

    def optimizer_name(self, optimizer: Optimizer) -> str:
        """Number the optimizers where there are several."""
        if len(self._optimizers) == 1:
            return ""
        return f"opt{next(i for i, held in enumerate(self._optimizers) if held is optimizer)}"

    def scale(self, optimizer: Optimizer) -> Scale | None:
        """Take the scaler's tensor as it is."""
        if self.scaler is None or not self.scaler.is_enabled() or self.scaler._scale is None:
            return None
        unscales_itself = getattr(optimizer, "_step_supports_amp_scaling", False)
        return Scale(self.scaler._scale, in_gradients=unscales_itself)

    def unscale_once(self, optimizer: Optimizer) -> None:
        """Unscale as the scaler's own step would, unless the loop has done so already."""
        if self.scaler is None or not self.scaler.is_enabled():
            return
        state = self.scaler._per_optimizer_states[id(optimizer)]  # noqa: SLF001 - no public way
        if state["stage"].name == "READY":
            self.scaler.unscale_(optimizer)

    def clipped_norm(self, norm: float) -> float | None:  # noqa: ARG002 - the port's signature
        """Know nothing: the loop clips before the optimizer's step, out of sight."""
        return None

    def measures_clipped(self) -> bool:
        """Measure nothing after the update: what is read before it is what is applied."""
        return False

    def program(self, held: Held, *, unscaled: bool) -> Program | str:
        """Run the model again on the same inputs, from the same gradients at its outputs."""
        grads = self._grads.get(held.batch_index, [])
        known = [grad for grad in grads if grad is not None]
        if not known:
            return NOT_SEEN
        if unscaled and self.scaler is not None:
            if not all(bool(grad.isfinite().all()) for grad in known):
                return SCALE_OVERFLOW
            factor = self.scaler.get_scale()
            grads = [None if grad is None else grad / factor for grad in grads]
        args, kwargs = held.batch
        half = self._autocast.get(held.batch_index, "")
        return ModelProgram(self._model, args, kwargs, grads, half)

    def bundle_folder(self) -> Path | None:
        """Put bundles into a folder beside the loop."""
        return Path(RUNS)

    def announce_checkpoint(self, finding: Finding) -> str:
        """Say that the weights in memory are those from before the step."""
        if finding.layer == OPTIMIZER:
            return WEIGHTS_ARE_BAD
        return f"  intact    the model's weights are those from before step {finding.step:,}"
