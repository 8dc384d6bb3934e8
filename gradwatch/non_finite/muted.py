"""What a replay must not send twice: rows a training step hands to W&B by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gradwatch.undo import patch_instance


@contextmanager
def wandb_muted() -> Iterator[None]:
    """Let ``wandb.log`` and the active run's ``log`` do nothing for a block.

    W&B is not imported for this: what is not loaded has nothing to send.
    """
    wandb: Any = sys.modules.get("wandb")
    run: Any = getattr(wandb, "run", None)
    with ExitStack() as stack:
        for target in (wandb, run):
            if target is not None:
                stack.callback(patch_instance(target, "log", _nothing))
        yield


def _nothing(*_args: object, **_kwargs: object) -> None:
    pass
