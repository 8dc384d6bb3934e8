"""Read a step: what is measured where, and how one transfer becomes one reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gradwatch.cuts import CutProbe
from gradwatch.hooks import Taps
from gradwatch.layers import LayerMap, execution_order
from gradwatch.measure import OptimizerView
from gradwatch.stale import StaleWatch
from gradwatch.step import StepInputs, TapReadings
from gradwatch.transfer import Transfer
from gradwatch.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from gradwatch.host import Host
    from gradwatch.parts import Needs
    from gradwatch.pending import Ledger
    from gradwatch.ranks import Ranks
    from gradwatch.readings import Coverage, FloatArray, StepReading


class Read(NamedTuple):
    """What one transfer brought.

    Attributes:
        reading: The step's reading.
        values: All values by name, those of earlier steps' updates included.
        flagged: What the ranks agreed on: 0 fine, 1 trouble, 2 one of them is off.
    """

    reading: StepReading
    values: Mapping[str, FloatArray]
    flagged: float


class StepReader:
    """Measure the optimizers of one model.

    Args:
        model: The model, unwrapped.
        host: The loop.
        ranks: The processes that train together.
        needs: What is wanted.
        native: Tap with torch's own full backward hooks.
        compiled: Whether a part of the model as it is called is compiled.

    Attributes:
        order: Layer names in execution order, registration order before the first step.
        stale: Gradients nobody clears.
    """

    def __init__(
        self,
        model: nn.Module,
        host: Host,
        ranks: Ranks,
        needs: Needs,
        *,
        native: bool,
        compiled: bool,
    ) -> None:
        """Walk the model; nothing is attached yet."""
        self._model, self._host, self._ranks, self._needs = model, host, ranks, needs
        self._layers = LayerMap(model)
        self._views: dict[int, OptimizerView] = {}
        self._taps = Taps(model, self._layers.layers, native=native, compiled=compiled)
        self._cuts = CutProbe(model)
        self.order = self._layers.names
        self.stale = StaleWatch()

    def tap(self, *, first: bool, sampled: bool) -> Undo:
        """Set the taps a micro-batch needs.

        Args:
            first: Before the first step: order, coverage and cuts are learnt.
            sampled: Activation gradients are due.

        Returns:
            The undo.
        """
        undo = Undo()
        if self._needs.norms and (first or (sampled and self._needs.activations)):
            undo.add(self._taps.attach())
        if self._needs.cuts and first:
            undo.add(self._cuts.attach())
        return undo

    def settle_order(self) -> Sequence[Coverage]:
        """Learn the execution order from the first step; say what of the model is seen."""
        self.order = execution_order(self._layers.names, self._taps.calls)
        return self._taps.coverage()

    def read(
        self, optimizer: Optimizer, losses: Sequence[Tensor], ledger: Ledger, *, first: bool
    ) -> Read:
        """Measure a step and wait for the device once.

        Args:
            optimizer: The optimizer that is about to step.
            losses: Unscaled losses of its micro-batches.
            ledger: Earlier steps whose updates ride along.
            first: Whether this is the run's first step.
        """
        inputs = self._inputs(optimizer, losses, first=first)
        transfer = Transfer()
        ledger.load(transfer)
        inputs.load(transfer, self._ranks)
        values = transfer.fetch()
        reading = inputs.unload(values, self._layers.owners)
        self.stale.stepped(inputs.view.parameters)
        return Read(reading, values, float(values["trouble"][0]) if "trouble" in values else 0.0)

    def _inputs(self, optimizer: Optimizer, losses: Sequence[Tensor], *, first: bool) -> StepInputs:
        clock = self._host.clock()
        return StepInputs(
            view=self.view(optimizer),
            host=self._host,
            clock=clock,
            name=self._host.optimizer_name(optimizer),
            scale=self._host.scale(optimizer),
            losses=tuple(losses),
            taps=TapReadings(self._taps.take()),
            called=self._taps.calls,
            cuts=tuple(self._cuts.cuts),
            stale=self.stale,
            logged=self._host.is_logged(clock.log_step) or first,
            norms=self._needs.norms,
            weights=self._needs.weights,
        )

    def view(self, optimizer: Optimizer) -> OptimizerView:
        """Give an optimizer's parameters, looked up anew where it holds others than before."""
        view = self._views.get(id(optimizer))
        if view is None or not view.is_current(optimizer):
            if any(parameter not in self._layers.owners for parameter in _held(optimizer)):
                self._layers = LayerMap(self._model)
            view = OptimizerView(optimizer, self._layers, self.order)
            self._views[id(optimizer)] = view
        return view


def _held(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
