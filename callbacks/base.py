"""What all gradwatch callbacks share: one session per Trainer, owned by the first of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradwatch.callbacks.bases import CallbackBase
from gradwatch.callbacks.host import LightningHost
from gradwatch.callbacks.loading import tell_loading
from gradwatch.callbacks.outputs import Configuration, sinks_of
from gradwatch.callbacks.wiring import attach
from gradwatch.errors import ConfigurationError, GradwatchError, NonFiniteGradientError
from gradwatch.findings import OPTIMIZER
from gradwatch.session import Session
from gradwatch.session_options import SessionOptions
from gradwatch.undo import Undo

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from torch import Tensor
    from torch.optim import Optimizer

    from gradwatch.findings import Finding
    from gradwatch.parts import Part


log = logging.getLogger("gradwatch")
IN_ENGINE = (
    "gradwatch: DeepSpeed's engine accumulates, clips and steps out of sight, so no gradient "
    "is watched in this run; its own overflow messages are all there is"
)

# Lightning sets the model's methods on every callback: a copy must not drag the model along.
MODELS_OWN = frozenset({"log", "log_dict"})


class MonitorCallback(CallbackBase):
    """Translate the Trainer's events; the first gradwatch callback of a Trainer owns the session.

    Args:
        parts: What is watched.
        configuration: How it is measured and told.
    """

    def __init__(self, parts: Sequence[Part], configuration: Configuration) -> None:
        """Keep the configuration; nothing is attached before a fit."""
        super().__init__()
        self.parts = tuple(parts)
        self.configuration = configuration
        self._session: Session | None = None
        self._host: LightningHost | None = None
        self._undo = Undo()
        self._resumed: dict[str, Any] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found in the present or last fit; on the callback that owns the session."""
        return tuple(self._session.findings) if self._session is not None else ()

    @property
    def state_key(self) -> str:
        """Key of the state in checkpoints: the class and what it watches."""
        return f"{type(self).__name__}({', '.join(part.name for part in self.parts)})"

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse two monitors of one kind, where the user configures.

        Raises:
            ConfigurationError: If two callbacks of the Trainer watch the same thing.
        """
        seen: dict[str, MonitorCallback] = {}
        for callback in monitors(trainer):
            for part in callback.parts:
                if part.name in seen:
                    raise ConfigurationError(_twice(part.name, seen[part.name], callback))
                seen[part.name] = callback

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the session, if this callback is the first of its kind."""
        together = monitors(trainer)
        if together[0] is not self:
            return
        self._close()
        if type(trainer.strategy).__name__ == "DeepSpeedStrategy":
            log.warning(IN_ENGINE)
            return
        try:
            self._open(trainer, pl_module, together)
        except GradwatchError:
            raise
        except Exception as error:  # noqa: BLE001 - a monitor never takes a run down
            log.warning("gradwatch could not be attached, the run goes on unwatched: %r", error)
            self._close()

    def _open(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        together: Sequence[MonitorCallback],
    ) -> None:
        joint = _joined([callback.configuration for callback in together])
        parts = [part for callback in together for part in callback.parts]
        host = LightningHost(trainer, checkpoint=joint.checkpoint)
        sinks = sinks_of(trainer, joint, {part.name: part.config() for part in parts})
        session = Session(pl_module, parts, sinks, host, joint.options)
        session.jury.accept(trainer.optimizers)
        session.teller.load_state_dict(self._resumed)
        self._resumed = {}
        self._session, self._host = session, host
        self._undo.add(attach(trainer, session, host))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell the parts how batches are loaded: by now the loaders are set up."""
        try:
            tell_loading(self.parts, trainer)
        except Exception as error:  # noqa: BLE001 - a monitor never takes a run down
            log.warning("gradwatch: how batches are loaded could not be read: %r", error)

    def on_before_backward(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        loss: Tensor,
    ) -> None:
        """Pass the start of a backward on."""
        if self._session is not None:
            if not pl_module.automatic_optimization and self._host is not None:
                self._host.manual_loss(self._session, loss)
            self._session.begin_backward(loss)

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Pass the end of a backward on."""
        if self._session is not None:
            self._session.end_backward()

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        optimizer: Optimizer,
    ) -> None:
        """Measure, judge and decide before the update."""
        if self._session is not None and self._host is not None:
            self._host.steps_in_batch += 1
            self._session.before_step(optimizer)

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Pass the end of a batch on."""
        if self._session is not None:
            self._session.end_batch()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Keep the intact weights if a non-finite gradient was stopped, and take everything off."""
        del pl_module
        session, host = self._session, self._host
        self._close()
        if session is None or host is None or not host.keeps_checkpoint:
            return
        if isinstance(exception, NonFiniteGradientError) and exception.finding.layer != OPTIMIZER:
            path = host.checkpoint_path(exception.finding.step)
            try:
                trainer.save_checkpoint(path)
            except Exception as error:  # noqa: BLE001 - the finding must not be lost over it
                log.warning(
                    "gradwatch: the intact weights could not be kept in %s: %s", path, error
                )

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take everything off."""
        self._close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.finish()
        self._undo()

    def state_dict(self) -> dict[str, Any]:
        """Give the parts' state by name, and that of the sinks where one of them has any."""
        told = self._resumed if self._session is None else self._session.teller.state_dict()
        return {**{part.name: part.state_dict() for part in self.parts}, **told}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; a part whose state is missing or does not fit starts anew."""
        self._resumed = {key: own for key, own in state_dict.items() if key == "sinks"}
        known = [part for part in self.parts if part.name in state_dict]
        for part in known:
            try:
                part.load_state_dict(state_dict[part.name])
            except Exception as error:  # noqa: BLE001, PERF203 - no monitor keeps a run from resuming
                reason = f"{type(error).__name__}: {error}"
                log.warning("gradwatch: %s starts anew, its state: %s", part.name, reason)

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle as a callback that is attached to nothing."""
        detached = {"_session": None, "_host": None, "_undo": Undo()}
        kept = {name: own for name, own in vars(self).items() if name not in MODELS_OWN}
        return {**kept, **detached}


def _joined(configurations: Sequence[Configuration]) -> Configuration:
    """Unite what several callbacks of one Trainer want; the first that measures otherwise wins."""
    usual = SessionOptions()
    options = (own.options for own in configurations if own.options != usual)
    return Configuration(
        sinks=tuple(sink for own in configurations for sink in own.sinks),
        console=all(own.console for own in configurations),
        record=all(own.record for own in configurations),
        options=next(options, usual),
        checkpoint=all(own.checkpoint for own in configurations),
        workspace=any(own.workspace for own in configurations),
    )


def monitors(trainer: pl.Trainer) -> list[MonitorCallback]:
    """Give a Trainer's gradwatch callbacks in their order."""
    callbacks: Sequence[object] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, MonitorCallback)]


def _twice(part: str, first: MonitorCallback, second: MonitorCallback) -> str:
    names = f"{type(first).__name__} and {type(second).__name__}"
    return (
        f"two callbacks watch {part!r}: {names}. Keep one of them; GradWatch(...) takes the "
        "options of every monitor, or False to leave one out"
    )
