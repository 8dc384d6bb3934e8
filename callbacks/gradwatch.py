"""All monitors from one line."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch.adaptive_lr import AdaptiveLearningRateOptions
from gradwatch.callbacks.base import MonitorCallback
from gradwatch.callbacks.outputs import Configuration
from gradwatch.choose import choose_parts
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.gradient_flow import GradientFlowOptions
from gradwatch.graph import GraphOptions
from gradwatch.memory import MemoryOptions
from gradwatch.non_finite.policy import NonFiniteOptions
from gradwatch.roofline import RooflineOptions
from gradwatch.session_options import BackwardHooks, SessionOptions
from gradwatch.sinks.protocol import Sink


class GradWatch(MonitorCallback):
    """Watch the backward pass: add it to the Trainer's callbacks and train.

    Each part takes its options, True for its defaults or False to leave it out.

    Args:
        non_finite: Stop before the weights take in NaN or Inf, and name the layer.
        gradient_flow: Per-layer gradient norms and the rules about them.
        memory: Memory at the borders of forward, backward and update.
        graph: Walk the autograd graph of the first micro-batches: saturating runs, cuts,
            states never detached, edits in place.
        symptoms: Look for lost precision, a collapsed loss scale and other symptoms.
        adaptive_lr: Let the learning rate follow the SNR ‖θ‖/‖g‖. Off by default: it is
            the one part that changes the training.
        roofline: Profile a few steady steps, once: where the time goes and what bounds each
            layer. Off by default: it takes some seconds, and torch's profiler.
        fused: On a CUDA device, say once which layers a fused backward is worth a trial for.
            Only options with ``mode="auto"`` try them and keep what is right and faster.
        backward_hooks: ``"sampled"`` sets backward taps on logging steps, ``"every_step"``
            on all, ``"module"`` uses torch's own full backward hooks at every step.
        byte_budget: Most bytes of batches held for a replay.
        console: Tell findings on the console.
        record: Write the run record beside the logs.
        workspace: Save a ready-made page in the W&B logger's project: the pictures on top, one
            panel a family. Needs the extra ``gradwatch[workspace]``.
        sinks: Sinks of your own.

    Raises:
        ConfigurationError: If an option cannot be meant.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[GradWatch()], logger=False, accelerator="cpu")
        >>> [part.name for part in trainer.callbacks[0].parts]
        ['non_finite', 'gradient_flow', 'memory_delta', 'graph', 'symptoms']
    """

    def __init__(
        self,
        *,
        non_finite: NonFiniteOptions | bool = True,
        gradient_flow: GradientFlowOptions | bool = True,
        memory: MemoryOptions | bool = True,
        graph: GraphOptions | bool = True,
        symptoms: bool = True,
        adaptive_lr: AdaptiveLearningRateOptions | bool = False,
        roofline: RooflineOptions | bool = False,
        fused: FusedBackwardOptions | bool = True,
        backward_hooks: BackwardHooks = "sampled",
        byte_budget: int = 1 << 30,
        console: bool = True,
        record: bool = True,
        workspace: bool = False,
        sinks: Sequence[Sink] = (),
    ) -> None:
        """Configure; nothing is attached before a fit."""
        parts = choose_parts(
            non_finite=non_finite,
            gradient_flow=gradient_flow,
            memory=memory,
            graph=graph,
            symptoms=symptoms,
            adaptive_lr=adaptive_lr,
            roofline=roofline,
            fused=fused,
        )
        configuration = Configuration(
            sinks=tuple(sinks),
            console=console,
            record=record,
            options=SessionOptions(backward_hooks=backward_hooks, byte_budget=byte_budget),
            checkpoint=not isinstance(non_finite, NonFiniteOptions) or non_finite.checkpoint,
            workspace=workspace,
        )
        super().__init__(parts, configuration)
