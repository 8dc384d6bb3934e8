"""Records to feed a sink with, and offline W&B runs read back from their file."""

import contextlib
import json
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wandb
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from wandb.proto import wandb_internal_pb2

from gradwatch.findings import Finding
from gradwatch.readings import FloatArray, FlowReading, StepRecord

Norms = FloatArray | Sequence[float]
MakeFlow = Callable[..., FlowReading]
MakeRecord = Callable[..., StepRecord]
MakeFinding = Callable[..., Finding]
BLOCK_BYTES = 32768
PATIENCE_SECONDS = 30
HEAD = struct.Struct("<IHB")
FIRST_OR_WHOLE, WHOLE_OR_LAST = (1, 2), (1, 4)


@pytest.fixture
def make_flow() -> MakeFlow:
    def make(grad_norm: Norms, **kwargs: Any) -> FlowReading:
        norms = np.asarray(grad_norm, dtype=np.float64)
        options: dict[str, Any] = {
            "layers": tuple(f"net.{i}" for i in range(len(norms))),
            "weight_norm": np.full(len(norms), 2.0),
            "has_grad": ~np.isnan(norms),
            "frozen": np.zeros(len(norms), dtype=bool),
        }
        return FlowReading(grad_norm=norms, **{**options, **kwargs})

    return make


@pytest.fixture
def make_record(make_flow: MakeFlow) -> MakeRecord:
    def make(step: int = 0, grad_norm: Norms = (1.0, 0.5), **kwargs: Any) -> StepRecord:
        scalars = kwargs.pop("scalars", {"grad/norm": 1.25})
        flow = make_flow(grad_norm, **kwargs)
        return StepRecord(step=step, log_step=step, scalars=scalars, flow=flow)

    return make


@pytest.fixture
def make_finding() -> MakeFinding:
    def make(**kwargs: Any) -> Finding:
        options: dict[str, Any] = {
            "rule": "vanishing",
            "layer": "net.0",
            "severity": "warning",
            "step": 3,
            "summary": "gradient norm is a millionth of the next layer's",
            "evidence": {"grad_norm": 1e-8},
            "cause": "a saturated sigmoid follows",
            "remedy": "use another activation",
        }
        return Finding(**{**options, **kwargs})

    return make


def read_payloads(data: bytes) -> Iterator[bytes]:
    """Split W&B's log format: 32 KiB blocks of chunks, a payload is one chunk or several."""
    place, payload = 7, b""
    while place + HEAD.size <= len(data):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEAD.size:
            place += left
            continue
        _, length, kind = HEAD.unpack_from(data, place)
        chunk = data[place + HEAD.size : place + HEAD.size + length]
        if len(chunk) < length:
            return
        payload = chunk if kind in FIRST_OR_WHOLE else payload + chunk
        place += HEAD.size + length
        if kind in WHOLE_OR_LAST:
            yield payload


class OfflineRun:
    """What the file of a finished offline run holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = next(folder.glob("*.wandb"))
        self.records = self._read()
        patience = time.monotonic() + PATIENCE_SECONDS
        # W&B's own process may still be writing when `finish` is back; the last record is exit.
        while not any(record.HasField("exit") for record in self.records):
            assert time.monotonic() < patience, f"{self.file} was never completed"
            time.sleep(0.02)
            self.records = self._read()

    def _read(self) -> list[Any]:
        parse, records = vars(wandb_internal_pb2)["Record"].FromString, []
        # What is being written this moment is read again until it is whole.
        with contextlib.suppress(DecodeError):
            for payload in read_payloads(self.file.read_bytes()):
                records.append(parse(payload))  # noqa: PERF401 - those before a torn one stay
        return records

    def rows(self) -> list[dict[str, Any]]:
        """Give the rows of history as dicts."""
        return [
            {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
            for record in self.records
            if record.WhichOneof("record_type") == "history"
            for items in [record.history.item]
        ]

    def alerts(self) -> list[Any]:
        """Give the alerts in order."""
        return [r.alert for r in self.records if r.WhichOneof("record_type") == "alert"]

    def summary(self) -> dict[str, Any]:
        """Give the last value written under each summary key."""
        return {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for record in self.records
            if record.WhichOneof("record_type") == "summary"
            for item in record.summary.update
        }


FinishRun = Callable[[], OfflineRun]


@pytest.fixture
def finish_run() -> Iterator[FinishRun]:
    """Finish the live run and read it back; finish it also where the test fails."""

    def finish() -> OfflineRun:
        assert wandb.run is not None
        folder = Path(wandb.run.dir).parent
        wandb.finish()
        return OfflineRun(folder)

    yield finish
    wandb.finish()
