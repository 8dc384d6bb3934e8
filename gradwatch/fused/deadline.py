"""Call what may never come back, and go on without it.

A kernel compiles at its first call, and a compiler can hang. The call runs in a thread of its own;
past the deadline it is left behind: an exception is set that ends it as soon as it runs Python
again, and a thread that never does so dies with the process. A process of its own would end it
for certain, but cannot hold the tensors of the device that the call is about.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

import torch

from gradwatch.errors import GradwatchError

__all__ = ["DeadlineError", "within"]

T = TypeVar("T")

# Devices that have no streams of their own, or one for all threads.
STREAMLESS = ("cpu", "mps", "meta")


class DeadlineError(GradwatchError, TimeoutError):
    """A call did not come back in time."""


class _Abandoned(BaseException):
    """Ends a thread nobody waits for any more."""


class _Worker(threading.Thread, Generic[T]):
    def __init__(self, call: Callable[[], T], device: torch.device) -> None:
        super().__init__(daemon=True, name="gradwatch-trial")
        self._call, self._surroundings = call, _surroundings(device)
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._surroundings:
                self.result = self._call()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self.error = error


def _surroundings(device: torch.device) -> AbstractContextManager[object]:
    """Take over the device and the stream of the thread that asks, to be entered in another.

    A thread begins on the default stream: there the call would read inputs that the stream of
    training has not written yet, and the allocator would hand memory on too early.
    """
    if device.type in STREAMLESS:
        return nullcontext()
    module = torch.get_device_module(device)
    stream = module.current_stream(device)
    own: AbstractContextManager[object] = module.stream(stream)
    return own


def within(seconds: float, call: Callable[[], T], device: torch.device) -> T:
    """Call in a thread of its own and wait for at most so long.

    What torch keeps for each thread (autocast, whether gradients are wanted) is not inherited:
    the call sets it itself.

    Args:
        seconds: How long to wait.
        call: What to call; it must not touch what training needs.
        device: The thread's current device; its stream is that of the caller.

    Returns:
        What the call returns.

    Raises:
        DeadlineError: If it does not return in time.
    """
    worker = _Worker(call, device)
    worker.start()
    try:
        worker.join(seconds)
    finally:
        # Also where the user interrupts the wait.
        late = worker.is_alive()
        if late:
            _abandon(worker)
    if late:
        raise DeadlineError(f"the first call did not come back within {seconds:g} s")
    if worker.error is not None:
        raise worker.error
    result: T = worker.result  # type: ignore[assignment]  # set where there is no error
    return result


def _abandon(worker: threading.Thread) -> None:
    ident = ctypes.c_ulong(worker.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_Abandoned))
