"""The graph is looked at while the first micro-batches' backwards begin, and never again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gradwatch.cooldown import Cooldown
from gradwatch.graph.faults import judge_edits
from gradwatch.graph.left_out import LeftOut
from gradwatch.graph.options import GraphOptions
from gradwatch.graph.places import Places, next_number
from gradwatch.graph.rules import (
    Cut,
    explain_fading,
    find_cut,
    judge_bound,
    judge_cut,
    judge_recurrence,
    judge_saturation,
)
from gradwatch.graph.spine import spine
from gradwatch.graph.walk import Graph, Surroundings, walk
from gradwatch.layers import LayerMap
from gradwatch.parts import Border, Needs, Part, Stage
from gradwatch.undo import Undo

if TYPE_CHECKING:
    from torch import Tensor

    from gradwatch.findings import Finding
    from gradwatch.readings import StepReading
    from gradwatch.reasons import Reasons

# Manual optimization may run many backwards in one micro-batch.
WALKS_A_MICRO_BATCH = 3
ONCE = 1 << 62
# The second shows whether a part of the first one's graph is still there; if not, that was it.
ALWAYS = 2


# Rules that measure what the graph knows the reason of.
FADES = "vanishing"
CUT_OFF = "disconnected"


class Held(NamedTuple):
    """A finding that waits whether another rule will tell it.

    Attributes:
        finding: What is told where none does.
        reasons: Where it is offered.
        tell: Tells it.
    """

    finding: Finding
    reasons: Reasons
    tell: Callable[[Finding], None]


class GraphWatch(Part):
    """Walk the graph of the first micro-batches from the loss and say what is wrong with it.

    What the backward would trip over is told at once, the rest with the step. In a plain
    loop the walk begins at the model's outputs, since the loss is not seen.

    Args:
        options: How far it is walked and what is told.
        beside_flow: Whether another part tells layers that get no gradient at all; then only
            parts of layers are told here.
    """

    name: ClassVar[str] = "graph"
    needs = Needs(cuts=True)

    def __init__(self, options: GraphOptions | None = None, *, beside_flow: bool = True) -> None:
        self.options = options or GraphOptions()
        self._beside_flow = beside_flow
        self._cooldown = Cooldown(ONCE)
        self._begin(None)

    def _begin(self, stage: Stage | None) -> None:
        self._stage = stage
        self._places = Places(stage.model) if stage else None
        self._layers: LayerMap | None = None
        self._undo = Undo()
        self._micro_batches = self._walks = self._step = self._since = 0
        self._open = False
        self._earlier: list[int] = []
        self._graph, self._shown = Graph([]), False
        self._found: list[Finding] = []
        self._judged: set[str] = set()
        self._held: Held | None = None
        self._left_out = LeftOut()

    def open(self, stage: Stage) -> None:
        """Learn the model; what an earlier fit saw is forgotten."""
        self._begin(stage)

    def border(self, border: Border, *, logged: bool = True) -> None:
        """Set the hooks for the first micro-batches, and take them off again."""
        del logged
        if border == "before_forward":
            self._undo()
            self._micro_batches += 1
            if not self._open:
                self._open, self._since = True, next_number()
            if not self._over(self._micro_batches):
                self._attach()
        elif border == "after_backward":
            self._open = False
            self._excuse()
            if self._places is not None:
                self._places.paused = False
        elif border == "after_step":
            self._undo()

    def _over(self, micro_batch: int) -> bool:
        """Tell whether a micro-batch (from 1) is beyond those that are looked at."""
        carries = self._earlier[-1:] > [0]
        return micro_batch > self.options.micro_batches or (micro_batch > ALWAYS and not carries)

    def _attach(self) -> None:
        if self._places is not None:
            self._walks = 0
            self._undo.add(self._places.attach())

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Walk the graph behind the roots."""
        done = self._over(self._micro_batches) or self._walks >= WALKS_A_MICRO_BATCH
        if self._places is None or done:
            return
        self._places.paused = True
        around = self._surroundings(self._places)
        graph = walk(roots, around)
        self._undo.add(self._left_out.attach(roots, graph, around.parameters))
        self._walks += 1
        if self._walks == 1:
            self._earlier.append(graph.earlier)
        if len(graph.nodes) > len(self._graph.nodes) and not self._shown:
            self._graph = graph
        fault = judge_edits(graph, self._step)
        # The backward is about to raise on it: there will be no step to tell it with.
        if fault is not None and self._stage is not None and self._cooldown.allows(fault):
            self._stage.tell(fault)
        self._suspect(graph)
        self._keep(judge_bound(graph, self._step))
        self._keep(judge_recurrence(self._earlier, graph.joint, len(graph.nodes), self._step))

    def _suspect(self, graph: Graph) -> None:
        """Hold a saturating run back where the gradient that fades through it will be told."""
        finding = judge_saturation(graph, self.options.saturating, self._step)
        reasons = self._stage.reasons if self._stage else None
        if finding is None or self._stage is None:
            return
        if reasons is None or not reasons.patience(FADES):
            self._keep(finding)
            return
        reasons.offer(FADES, partial(explain_fading, graph, step=self._step))
        if self._held is None and self._cooldown.is_due(finding):
            self._held = Held(finding, reasons, self._stage.tell)

    def _excuse(self) -> None:
        """Let others know of layers that the backward was told to leave out."""
        names = self._left_out.names
        if names and self._layers and self._stage and self._stage.reasons:
            owners = {self._layers.name(own): layer for own, layer in self._layers.owners.items()}
            self._stage.reasons.excuse(CUT_OFF, [owners[name] for name in names])

    def _settle(self, step: int, *, over: bool = False) -> None:
        """Let go of what was told with another finding; tell it where none came."""
        held = self._held
        if held is None:
            return
        told = held.reasons.is_told(FADES)
        # Each optimizer's layers are judged at its own steps.
        patience = held.reasons.patience(FADES) * max(len(self._judged), 1)
        if not (told or over or step + 1 - held.finding.step >= patience):
            return
        self._held = None
        if self._cooldown.allows(held.finding) and not told:
            held.tell(held.finding)

    def _surroundings(self, places: Places) -> Surroundings:
        if self._layers is None and self._stage is not None:
            # Not sooner: lazy modules have no parameters before their first forward.
            self._layers = LayerMap(self._stage.model)
        return Surroundings(
            parameters=self._layers.parameter_names if self._layers else {},
            layer_of=places.layer_of,
            since=self._since,
            most_nodes=self.options.most_nodes,
        )

    def _keep(self, finding: Finding | None) -> None:
        if finding is not None and self._cooldown.allows(finding):
            self._found.append(finding)

    def judge(self, reading: StepReading) -> list[Finding]:
        """Tell what was found, and show the graph with the first step."""
        self._step = reading.step + 1
        if self._graph.nodes and reading.optimizer not in self._judged:
            self._judged.add(reading.optimizer)
            cut = self._find_cut(reading)
            self._keep(judge_cut(cut, reading.step, told=self._beside_flow))
            self._show(cut, reading.step)
        self._settle(reading.step)
        if self._over(self._micro_batches + 1):
            self._let_go()
        found, self._found = self._found, []
        return found

    def _show(self, cut: Cut | None, step: int) -> None:
        if self._stage is not None and not self._shown:
            self._shown = True
            self._stage.show(spine(self._graph, cut, rows=self.options.rows, step=step))

    def _find_cut(self, reading: StepReading) -> Cut | None:
        trained = {
            name
            for parameter, name in (self._layers.parameter_names.items() if self._layers else ())
            if parameter.requires_grad
        }
        owners = [reading.flow.layers[int(place)] for place in reading.parameters.layer]
        known = list(
            zip(reading.parameters.names, owners, reading.parameters.has_grad, strict=True)
        )
        # What is hidden in a custom function (reentrant checkpointing) has a gradient all the same.
        without = {
            name: owner
            for name, owner, has_grad in known
            if not has_grad and name in trained and name not in self._graph.reached
        }
        order = tuple(self._places.called) if self._places else ()
        reached = {owner for _, owner, has in known if has}
        return find_cut(without, reached, order, reading.cuts)

    def _let_go(self) -> None:
        """Hold on to nothing of the model once the look is over."""
        self._undo()
        self._stage = self._places = self._layers = None
        self._graph = Graph([])

    def after_batch(self) -> None:
        """Take the hooks off."""
        self._undo()

    def close(self) -> None:
        """Tell what no step came to tell, and hold on to nothing of the model."""
        self._settle(self._step, over=True)
        if self._stage is not None:
            for finding in self._found:
                self._stage.tell(finding)
        self._found = []
        self._let_go()

    def config(self) -> Mapping[str, Any]:
        """Give the options."""
        return asdict(self.options)

    def state_dict(self) -> dict[str, Any]:
        """Give what was told: a resumed run looks again and says nothing twice."""
        return {"told": self._cooldown.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._cooldown.load_state_dict(state["told"])

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle as a part that plays on no model."""
        return {name: vars(self)[name] for name in ("options", "_beside_flow", "_cooldown")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin without a model."""
        vars(self).update(state)
        self._begin(None)
