"""A first call in a thread of its own goes to the stream that training is on."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from gradwatch.fused.deadline import DeadlineError, within


class Streams:
    """A device's module as torch has them: each thread begins on the default stream."""

    def __init__(self) -> None:
        self._own = threading.local()

    def current_stream(self, device: torch.device) -> str:
        return getattr(self._own, "stream", f"default of {device}")

    @contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        before = getattr(self._own, "stream", "none")
        self._own.stream = stream
        yield
        self._own.stream = before


CARD = torch.device("cuda:1")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    found = Streams()
    monkeypatch.setattr(torch, "get_device_module", lambda _: found)
    return found


def test_the_call_runs_on_the_stream_of_the_one_who_waits(streams: Streams) -> None:
    with streams.stream("of training"):
        assert within(5, lambda: streams.current_stream(CARD), CARD) == "of training"
        assert streams.current_stream(CARD) == "of training"


def test_without_a_stream_of_its_own_it_is_the_default_one(streams: Streams) -> None:
    assert within(5, lambda: streams.current_stream(CARD), CARD) == "default of cuda:1"


def test_an_error_leaves_the_stream_of_the_one_who_waits(streams: Streams) -> None:
    def fails() -> None:
        raise ValueError(streams.current_stream(CARD))

    with streams.stream("of training"):
        with pytest.raises(ValueError, match="of training"):
            within(5, fails, CARD)
        assert streams.current_stream(CARD) == "of training"


def test_a_processor_has_no_streams_to_take_over() -> None:
    assert within(5, torch.get_num_threads, torch.device("cpu")) == torch.get_num_threads()


def test_a_thread_that_is_left_behind_ends_as_soon_as_it_runs_python_again() -> None:
    left: list[threading.Thread] = []

    def endless() -> None:
        left.append(threading.current_thread())
        while True:
            time.sleep(0.005)

    with pytest.raises(DeadlineError, match="did not come back within"):
        within(0.05, endless, torch.device("cpu"))
    left[0].join(30)
    assert not left[0].is_alive()
