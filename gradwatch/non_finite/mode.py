"""A dispatch mode with hooks: the base of what watches a replay."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import Self

from gradwatch.undo import Undo


class Watch(TorchDispatchMode):
    """See every operation PyTorch dispatches between entering and leaving."""

    # Operators over functions (flex attention) are refused to a mode that does not say this.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        """Start unhooked."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._undo = Undo()

    def __enter__(self) -> Self:
        """Hook what is hooked and begin to watch."""
        self._undo = self.attach()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *reason: object) -> None:
        """Stop watching and take the hooks off."""
        try:
            super().__exit__(*reason)  # type: ignore[no-untyped-call]
        finally:
            self._undo()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - also operators over functions
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operation returns
        """Hand an operation to `run`."""
        return self.run(func, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # A replay runs uncompiled anyway; shielding each operation would load the compiler.
        return False

    @abstractmethod
    def attach(self) -> Undo:
        """Hook modules; called on entering."""

    @abstractmethod
    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation.

        Args:
            func: The operation; also operators over functions come here.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            What the operation returns.
        """
