"""The same code in float64: the exact answer, as far as anyone needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["InDoubles"]

SHORTER = (torch.float32, torch.bfloat16, torch.float16)


class InDoubles(TorchDispatchMode):
    """Let nothing be rounded to less than float64.

    A norm written by hand casts to float32 at once, and its float64 twin would be no more exact
    than itself: here every cast to a shorter type is one to float64.
    """

    def __init__(self) -> None:
        """Widen from entering to leaving."""
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - also operators over functions
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operation returns
        """Run an operation, its dtype argument widened."""
        widened = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*(_wide(each) for each in args), **widened)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def _wide(value: Any) -> Any:  # noqa: ANN401 - any argument
    return torch.float64 if isinstance(value, torch.dtype) and value in SHORTER else value
