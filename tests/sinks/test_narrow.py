"""A narrow terminal gets whole lines: nothing is folded by the terminal itself."""

from collections.abc import Callable

import numpy as np
import pyte
import pytest

from gradwatch.findings import Finding
from gradwatch.readings import Coverage, StepRecord
from gradwatch.sinks import ConsoleSink
from gradwatch.tables import Table

MakeRecord = Callable[..., StepRecord]
MakeFinding = Callable[..., Finding]

LAYERS = tuple(f"model.encoder.layers.{i}.attention.output.dense" for i in range(12))
SCALARS = {"grad/non_finite": 0.0, "grad/skipped": 0.0, "grad/norm": 0.1036, "grad/clip_rate": 0.25}


@pytest.fixture(params=[40, 60, 80, 120])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def tell_all(told: list[str], make_record: MakeRecord, make_finding: MakeFinding) -> None:
    sink = ConsoleSink(told.append)
    blind = [Coverage(layer=layer, state="blind", reason="compiled") for layer in LAYERS]
    sink.start([Coverage(layer="net", state="hooked"), *blind])
    norms = np.linspace(0.0, 1.0, len(LAYERS))
    sink.record(make_record(39, norms, layers=LAYERS, scalars=SCALARS))
    sink.finding(make_finding(layer=LAYERS[3], evidence={"chain": " → ".join(LAYERS)}))
    rows = tuple((layer, 1.5, "a reason that is rather long") for layer in LAYERS)
    columns = ("layer", "time (ms)", "reason")
    sink.table(Table(name="trials", title="What was tried", step=3, columns=columns, rows=rows))
    sink.close()


def test_no_line_is_wider_than_the_terminal(
    width: int, make_record: MakeRecord, make_finding: MakeFinding
) -> None:
    told: list[str] = []
    tell_all(told, make_record, make_finding)
    lines = [line for block in told for line in block.splitlines()]
    screen = pyte.Screen(width, 400)
    pyte.Stream(screen).feed("\r\n".join(lines))
    assert [line.rstrip() for line in screen.display[: len(lines)]] == lines
    assert len(told) == 4


def test_the_end_keeps_name_gradient_and_state_however_narrow(
    width: int, make_record: MakeRecord, make_finding: MakeFinding
) -> None:
    told: list[str] = []
    tell_all(told, make_record, make_finding)
    header = next(line for line in told[-1].splitlines() if line.startswith("layer "))
    shown = header.split()
    assert shown[:2] == ["layer", "gradient"]
    assert shown[-1] == "state"
    assert len(shown) == {40: 3, 60: 5, 80: 6, 120: 6}[width]
    rows = [line for line in told[-1].splitlines() if line.startswith("…")]
    assert all("output.dense" in line for line in rows)


def test_counts_of_zero_are_not_worth_a_word_and_others_are(
    make_record: MakeRecord, make_finding: MakeFinding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    told: list[str] = []
    tell_all(told, make_record, make_finding)
    head, *_ = told[-1].splitlines()
    assert head.endswith("1 finding; at the last step: grad/norm 0.1036, grad/clip_rate 0.25")
    told.clear()
    sink = ConsoleSink(told.append)
    sink.record(make_record(0, scalars={**SCALARS, "grad/skipped": 2.0}))
    sink.close()
    assert "grad/skipped 2" in told[0]
    assert "grad/non_finite" not in told[0]
