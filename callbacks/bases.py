"""The Callback classes of both Lightning namespaces, as the bases of one class."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import lightning.pytorch as pl

if TYPE_CHECKING:
    CallbackBase = pl.Callback
else:

    def _bases() -> tuple[type, ...]:
        """Derive from both: a Trainer takes either, LightningCLI only its own."""
        if find_spec("pytorch_lightning") is None:
            return (pl.Callback,)
        import pytorch_lightning as other

        return tuple(dict.fromkeys((pl.Callback, other.Callback)))

    CallbackBase = type("CallbackBase", _bases(), {})

__all__ = ["CallbackBase"]
