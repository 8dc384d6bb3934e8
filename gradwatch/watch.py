"""The same watching for a plain PyTorch loop, without Lightning."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from gradwatch.choose import checked, choose_parts
from gradwatch.host import RUNS
from gradwatch.layers import unwrap
from gradwatch.plain_host import PlainHost
from gradwatch.plain_loop import Watch
from gradwatch.ranks import Ranks
from gradwatch.session import Session
from gradwatch.session_options import BackwardHooks, SessionOptions
from gradwatch.sinks.console import ConsoleSink
from gradwatch.sinks.record import RunRecordSink
from gradwatch.sinks.wandb import WandbSink

if TYPE_CHECKING:
    from torch.amp import GradScaler
    from torch.optim import Optimizer

    from gradwatch.adaptive_lr import AdaptiveLearningRateOptions
    from gradwatch.fused.options import FusedBackwardOptions
    from gradwatch.gradient_flow import GradientFlowOptions
    from gradwatch.graph import GraphOptions
    from gradwatch.memory import MemoryOptions
    from gradwatch.non_finite.policy import NonFiniteOptions
    from gradwatch.parts import Part
    from gradwatch.roofline import RooflineOptions
    from gradwatch.sinks.protocol import Sink


def watch(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    scaler: GradScaler | None = None,
    non_finite: NonFiniteOptions | bool = True,
    gradient_flow: GradientFlowOptions | bool = True,
    memory: MemoryOptions | bool = True,
    graph: GraphOptions | bool = True,
    symptoms: bool = True,
    adaptive_lr: AdaptiveLearningRateOptions | bool = False,
    roofline: RooflineOptions | bool = False,
    fused: FusedBackwardOptions | bool = True,
    backward_hooks: BackwardHooks = "sampled",
    log_every_n_steps: int = 50,
    byte_budget: int = 1 << 30,
    console: bool = True,
    record: bool = False,
    sinks: Sequence[Sink] = (),
) -> Watch:
    """Watch a model in a plain loop; an active ``wandb.run`` gets metrics, alerts and pictures.

    Gradients are read when the optimizer steps: a norm that the loop clips is seen after it.

    Args:
        model: The model; data-parallel and compiled wrappers are looked through.
        optimizer: Its optimizer, or several.
        scaler: The gradient scaler, where the loop has one.
        non_finite: Options, True for the defaults, False to leave it out.
        gradient_flow: Likewise.
        memory: Likewise.
        graph: Likewise; the walk begins at the model's outputs, the loss is not seen.
        symptoms: True to look for lost precision and other symptoms, False to leave it out.
        adaptive_lr: Likewise; off by default, since it changes the training.
        roofline: Likewise; off by default, since it takes some seconds.
        fused: Likewise; True only says which layers are worth a trial, on a CUDA device.
        backward_hooks: ``"sampled"``, ``"every_step"`` or ``"module"``.
        log_every_n_steps: Optimizer steps between two recorded steps.
        byte_budget: Most bytes of batches held for a replay.
        console: Tell findings on the console.
        record: Write ``gradwatch_runs/record.jsonl``, from which ``gradwatch report`` is made.
        sinks: Sinks of your own.

    Returns:
        The handle to close.

    Raises:
        ConfigurationError: If an option cannot be meant.

    Examples:
        >>> import torch
        >>> model = nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with watch(model, optimizer, console=False) as watched:
        ...     model(torch.ones(2, 4)).mean().backward()
        ...     _ = optimizer.step()
        >>> watched.findings
        ()
    """
    optimizers = checked(model, optimizer, sinks)
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
    options = SessionOptions(backward_hooks=backward_hooks, byte_budget=byte_budget)
    host = PlainHost(unwrap(model), optimizers, scaler, log_every_n_steps)
    told = [*_usual_sinks(parts, console=console, record=record), *sinks]
    session = Session(model, parts, [] if Ranks().rank else told, host, options)
    session.jury.accept(optimizers)
    return Watch(model, optimizers, session, host)


def _usual_sinks(parts: Sequence[Part], *, console: bool, record: bool) -> list[Sink]:
    sinks: list[Sink] = [ConsoleSink()] if console else []
    run: Any = getattr(sys.modules.get("wandb"), "run", None)
    if run is not None:
        sinks.append(WandbSink(run, scalars=True))
    if record:
        config = {part.name: part.config() for part in parts}
        sinks.append(RunRecordSink(Path(RUNS) / "record.jsonl", config=config))
    return sinks
